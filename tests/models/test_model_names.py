"""Models by name: spellings, Hugging Face ids, and none taken for another."""

import pytest

from jaxscale.base.errors import InputError
from jaxscale.models import catalogue_model, model, model_fields
from jaxscale.models.model_catalogue import model_entries

SPELLINGS = {
    "llama3-8b": [
        "meta-llama/Llama-3.1-8B",
        "meta-llama/Meta-Llama-3-8B-Instruct",
        "Llama-3.1-8B-Instruct",
        "LLAMA3_8B",
    ],
    "llama2-7b": ["meta-llama/Llama-2-7b-hf", "Llama-2-7b-chat-hf"],
    "llama3.2-1b": ["meta-llama/Llama-3.2-1B-Instruct"],
    "mixtral-8x7b": ["mistralai/Mixtral-8x7B-Instruct-v0.1", "mixtral_8x7b"],
    "mistral-7b": ["mistralai/Mistral-7B-v0.1"],
    "qwen2.5-7b": ["Qwen/Qwen2.5-7B-Instruct"],
    "qwen3-8b": ["Qwen/Qwen3-8B", "Qwen3-8B-Base"],
    "qwen3-30b-a3b": ["Qwen/Qwen3-30B-A3B-Instruct-2507", "qwen3_30b_a3b"],
    "deepseek-v3": ["deepseek-ai/DeepSeek-V3", "deepseek-ai/DeepSeek-R1-0528"],
    "llama3-70b": [
        "meta-llama/Llama-3.3-70B-Instruct",
        "deepseek-ai/DeepSeek-R1-Distill-Llama-70B",
        "amd/Llama-3.1-70B-Instruct-FP8-KV",
        "unsloth/Meta-Llama-3.1-70B-Instruct-unsloth-bnb-4bit",
    ],
    "llama1-13b": ["lmsys/longchat-13b-16k"],
    "qwen2.5-14b": ["Qwen/Qwen2.5-14B-Instruct-1M"],
    "deepseek-v3.2": ["deepseek-ai/DeepSeek-V3.2-Exp"],
    "glm5": ["zai-org/GLM-5-FP8"],
    "minimax-m2": ["MiniMaxAI/MiniMax-M2.5"],
    "kimi-k3": ["moonshotai/Kimi-K3"],
    "step3.7-flash": ["stepfun-ai/Step-3.7-Flash"],
    "qwen2.5-32b": ["Qwen/Qwen2.5-32B-Instruct-GPTQ-Int4", "deepseek-ai/DeepSeek-R1-Distill-Qwen-32B"],
    "command-r-plus-104b": ["CohereLabs/c4ai-command-r-plus-08-2024"],
    "mistral-small-24b": ["mistralai/Mistral-Small-3.1-24B-Instruct-2503"],
    "llama2-13b": ["lmsys/vicuna-13b-v1.5", "lmsys/vicuna-13b-v1.5-16k"],
    "deepseek-v2-lite": ["deepseek-ai/DeepSeek-V2-Lite-Chat"],
    "kimi-k2": ["moonshotai/Kimi-K2-Instruct"],
    "gpt-oss-120b": ["openai/gpt-oss-120b"],
    "gemma3-27b": ["google/gemma-3-27b-it"],
    "glm4.5-air": ["zai-org/GLM-4.5-Air"],
    "phi4": ["microsoft/phi-4-14b"],
    "olmo2-13b": ["allenai/OLMo-2-1124-13B"],
}
UNKNOWN = ["gpt-9", "llama3-9b", "meta-llama/Llama-3.1-8B-LoRA", "qwen3", "mistral", "8b", "", "deepseek"]


@pytest.mark.parametrize(("name", "spellings"), SPELLINGS.items())
def test_spellings_mean_the_model(name: str, spellings: list[str]):
    assert all(catalogue_model(spelling) is model_fields()[name] for spelling in spellings)


@pytest.mark.parametrize("name", UNKNOWN)
def test_no_name_is_taken_for_another(name: str):
    assert catalogue_model(name) is None
    with pytest.raises(InputError, match="is not in the catalogue; .* a config.json of Hugging Face"):
        model(name)


def test_the_catalogue_has_the_models_that_people_train():
    assert len(model_entries()) >= 80
    assert all(catalogue_model(name.upper()) is fields for name, fields in model_fields().items())


@pytest.mark.parametrize(
    ("name", "first"), [("llama3-7b", "llama-7b"), ("mistral-8b", "ministral-8b"), ("qwen2.5-70b", "qwen2.5-7b")]
)
def test_a_name_of_the_same_size_is_offered_first(name, first):
    with pytest.raises(InputError, match=f"did you mean {first}"):
        model(name)


def test_no_model_of_another_family_is_offered():
    with pytest.raises(InputError) as refusal:
        model("open_lm-7b")
    assert "palm" not in str(refusal.value)
