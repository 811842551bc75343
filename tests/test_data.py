"""The shipped tables and catalogues: schemas, ranges, sources, licences, published sizes."""

import tomllib
from pathlib import Path

import pandas as pd
import pandera.pandas as pa
import pytest

DATA = Path(__file__).resolve().parents[1] / "data"
RUNS = [path for folder in ("runs", "restricted/runs") for path in sorted((DATA / folder).glob("*.csv"))]
TABLES = sorted(path.relative_to(DATA).as_posix() for path in DATA.rglob("*.csv"))


def load(name):
    """One TOML file of the data folder."""
    return tomllib.loads((DATA / name).read_text(encoding="utf-8"))


HARDWARE, MODELS, LICENCES = load("hardware.toml"), load("models.toml"), load("licences.toml")["tables"]
CHIPS = HARDWARE["chips"]
CHIP_IDS = [*CHIPS, *(alias for entry in CHIPS.values() for alias in entry.get("aliases", []))]
PEAKS = [f"peak_tflops_{name}" for name in ("fp32", "tf32", "bf16", "fp8", "fp4")]
CHIP_RANGES = {
    **dict.fromkeys(PEAKS, (1.0, 5e4)),
    "memory_gb": (1.0, 2e3),
    "memory_gb_per_s": (100.0, 5e4),
    "domain_size": (1.0, 1e5),
    "tray_size": (1.0, 16.0),
    "link_gb_per_s": (1.0, 1e4),
    "link_peers": (1.0, 64.0),
    "link_latency_us": (0.1, 100.0),
    "network_gb_per_s": (0.1, 1e3),
    "network_latency_us": (0.1, 1e3),
    "rail_size": (2.0, 1e6),
    "spine_gb_per_s": (0.1, 1e3),
    "spine_latency_us": (0.1, 1e3),
    "idle_power_w": (1.0, 500.0),
    "max_power_w": (50.0, 5e3),
}
REQUIRED_OF_CHIP = {"memory_gb", "memory_gb_per_s", "domain_size", "link_gb_per_s", "network_gb_per_s", "max_power_w"}
MODEL_FIELDS = {
    "n_layers", "d_model", "n_heads", "seq_len", "n_kv_heads", "head_dim", "d_ff", "gated_mlp", "vocab_size",
    "tied_embeddings", "n_experts", "moe_top_k", "d_ff_expert", "moe_latent_size", "n_shared_experts", "expert_bias",
    "n_dense_layers", "n_attention_layers", "n_mlp_layers", "n_ssm_layers", "ssm_d_inner", "ssm_state", "ssm_groups",
    "q_lora_rank", "kv_lora_rank", "rope_head_dim", "v_head_dim", "attention_gate", "window", "window_share",
    "position_embeddings", "causal", "trainable_share", "o_lora_rank", "o_groups", "shared_key_value",
}  # fmt: skip
REQUIRED_OF_MODEL = {"source", "n_layers", "d_model", "n_heads", "d_ff", "gated_mlp", "vocab_size", "seq_len"}
ABOUT_MODEL = {"aliases", "source", "published_params", "published_digits", "published_active_params", "note"}
# Models of the tables that the catalogue cannot describe: no decoders, or nothing public to describe them by.
WIDE = ("fp32", "tf32", "fp16", "fp16-mixed", "bf16")
RECOMPUTED = (
    "none",
    "selective",
    "full",
    "minimal",
    "minimal_flash",
    "qkv_proj_offloaded",
    "selective-op",
    "selective-layer",
)

OUTSIDE_CATALOGUE = {
    "resnet50-v1.5", "T5-v1.1-small", "T5-v1.1-large", "T5-v1.1-xl", "T5-v1.1-xxl", "maxtext-1160B",
    "Nemotron_3_Ultra", "gpt-183B", "gpt-191B", "gpt-194B", "gpt-200B", "gpt-205B",
}  # fmt: skip


def count(low=1, high=1e8):
    """Optional column of whole numbers."""
    whole = pa.Check(lambda cells: cells % 1 == 0, error="whole numbers")
    return pa.Column(float, [pa.Check.in_range(low, high), whole], nullable=True, coerce=True)


def number(low, high):
    """Optional column of numbers in a range."""
    return pa.Column(float, pa.Check.in_range(low, high), nullable=True, coerce=True)


def words(*vocabulary, nullable=True):
    """Column of words from a vocabulary."""
    return pa.Column(checks=pa.Check.isin(vocabulary), nullable=nullable)


def text(nullable=True):
    """Column of free text."""
    return pa.Column(nullable=nullable)


def devices_multiply_up(runs):
    """Rows in which dp tp pp cp, where dp is stated, is the number of chips."""
    degrees = runs[["dp", "tp", "pp", "cp"]].fillna(1.0).prod(axis=1)
    return runs["dp"].isna() | (degrees == runs["n_gpus"])


def batch_multiplies_up(runs):
    """Rows whose microbatches make the batch, or whose notes say that the source contradicts itself."""
    made = runs["micro_batch_size"] * runs["n_microbatches"] * runs["dp"]
    return made.isna() | (made == runs["global_batch_size_seqs"]) | runs["notes"].astype(str).str.contains("stated GA")


def throughput_agrees(runs):
    """Rows whose step time and tokens per second agree to 2 %, or whose notes say that they do not."""
    tokens_per_s = runs["global_batch_size_seqs"] * runs["seq_len"] / runs["n_gpus"] / runs["step_time_s"]
    ratio = tokens_per_s / runs["tokens_per_s_per_gpu"]
    return ratio.isna() | ratio.between(0.98, 1.02) | runs["notes"].astype(str).str.contains("vs stated tokens/s")


def only_ok_rows_have_times(runs):
    """Rows without a step time, or that ended well."""
    return runs["step_time_s"].isna() | (runs["status"] == "ok")


def below_peak(runs):
    """Rows whose rate stays below the highest dense peak of the chip."""
    best = {chip: max(CHIPS[chip][peak]["value"] for peak in PEAKS if peak in CHIPS[chip]) for chip in CHIPS}
    return runs["tflops_per_gpu"].isna() | (runs["tflops_per_gpu"] < runs["gpu"].map(best))


RUN_SCHEMA = pa.DataFrameSchema(
    {
        "source": text(nullable=False),
        "source_row": text(nullable=False),
        "model": text(nullable=False),
        "framework": text(),
        "release": text(),
        "n_layers": count(1, 200),
        "d_model": count(256, 1e5),
        "n_heads": count(1, 512),
        "n_kv_heads": count(1, 512),
        "d_ff": count(256, 1e6),
        "gated_mlp": words(True, False),
        "vocab_size": count(1000, 1e6),
        "n_experts": count(2, 1024),
        "moe_top_k": count(1, 64),
        "seq_len": count(64, 2e6),
        "gpu": words(*CHIP_IDS, nullable=False),
        "n_gpus": count(1, 1e5),
        "gpus_per_node": count(1, 72),
        "inter_node_gbit_per_s_per_gpu": number(1, 1600),
        "precision": words(*WIDE, "fp8", "fp8-cs", "fp8-mx", "mxfp8", "nvfp4", "fp8-tensorwise", "fp8-rowwise"),
        "tp": count(1, 256),
        "pp": count(1, 256),
        "vpp": count(1, 64),
        "cp": count(1, 64),
        "ep": count(1, 256),
        "dp": count(1, 1e5),
        "zero_stage": count(0, 3),
        "sequence_parallel": words(True, False),
        "activation_recompute": words(*RECOMPUTED),
        "attention_kernel": text(),
        "fused_norm": words(True, False),
        "micro_batch_size": count(1, 1e4),
        "global_batch_size_seqs": count(1, 1e6),
        "n_microbatches": count(1, 1e5),
        "step_time_s": number(1e-3, 1e4),
        "step_time_derived": words(True, False),
        "tokens_per_s_per_gpu": number(0.1, 1e6),
        "tflops_per_gpu": number(0.1, 1e4),
        "mfu": number(0.01, 1.0),
        "peak_mem_gb": number(0.1, 400),
        "status": words("ok", "oom", "failed", nullable=False),
        "notes": text(),
    },
    checks=[
        pa.Check(check, error=check.__doc__)
        for check in (
            devices_multiply_up,
            batch_multiplies_up,
            throughput_agrees,
            only_ok_rows_have_times,
            below_peak,
        )
    ],
    strict=True,
    ordered=True,
)


def read(path):
    """One table."""
    return pd.read_csv(path, low_memory=False)


@pytest.mark.parametrize("path", RUNS, ids=lambda path: path.stem)
def test_runs_follow_the_schema(path):
    """Columns, ranges and the arithmetic of plans, batches and throughput hold in every row."""
    runs = RUN_SCHEMA.validate(read(path), lazy=True)
    assert set(runs["source"]) == {path.stem}


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("gpu", "h100"),
        ("n_gpus", 7),
        ("n_layers", 2.5),
        ("status", "crashed"),
        ("step_time_s", -1.0),
        ("mfu", 41.0),
        ("n_microbatches", 3),
        ("tokens_per_s_per_gpu", 5.0),
        ("tflops_per_gpu", 3000.0),
        ("d_model", "wide"),
    ],
)
def test_schema_refuses_a_corrupted_cell(column, value):
    """Negative control: one wrong cell is found."""
    runs = read(DATA / "runs" / "mosaic_llm_foundry.csv")
    runs[column] = runs[column].astype(object)
    runs.loc[3, column] = value
    with pytest.raises(pa.errors.SchemaErrors):
        RUN_SCHEMA.validate(runs, lazy=True)


def test_schema_refuses_another_column():
    """Negative control: a column too many and a column too few are found."""
    runs = read(DATA / "runs" / "maxtext_tpu.csv")
    for frame in (runs.assign(colour="red"), runs.drop(columns="gpu")):
        with pytest.raises(pa.errors.SchemaErrors):
            RUN_SCHEMA.validate(frame, lazy=True)


@pytest.mark.parametrize("chip", CHIPS)
def test_numbers_of_a_chip(chip):
    """Every number has a source and lies in a plausible range; estimates say how they were reckoned."""
    entry = CHIPS[chip]
    assert entry["vendor"] and entry["name"]
    numbers = {key: entry[key] for key in entry.keys() - {"vendor", "name", "note", "aliases"}}
    assert numbers.keys() <= CHIP_RANGES.keys() and numbers.keys() >= REQUIRED_OF_CHIP
    for key, number_ in numbers.items():
        low, high = CHIP_RANGES[key]
        assert low <= number_["value"] <= high, key
        assert number_["source"] in HARDWARE["sources"], key
        assert number_["source"] != "estimate" or number_["note"], key


@pytest.mark.parametrize("chip", CHIPS)
def test_numbers_of_a_chip_are_ordered(chip):
    """Narrower formats are no slower; nearer memory and networks no narrower; idling draws less."""
    value = {key: entry["value"] for key, entry in CHIPS[chip].items() if isinstance(entry, dict)}
    peaks = [value[peak] for peak in PEAKS if peak in value]
    assert peaks and peaks == sorted(peaks)
    assert value["memory_gb_per_s"] > value["link_gb_per_s"] > value["network_gb_per_s"]
    assert value["idle_power_w"] < value["max_power_w"]


def test_fallbacks_reach_a_value():
    """Every number that a chip may lack falls back to a known number, or is declared required or optional."""
    fallbacks = HARDWARE["fallbacks"]
    assert fallbacks.keys() == CHIP_RANGES.keys()
    for key, fallback in fallbacks.items():
        assert fallback["note"], key
        assert fallback.get("from", key) in CHIP_RANGES
        assert fallback.get("source", "estimate") in HARDWARE["sources"]
        low, high = CHIP_RANGES[key]
        assert low <= fallback.get("value", low) <= high
        assert ("from" in fallback) == ("ratio" in fallback)


@pytest.mark.parametrize("catalogue", [HARDWARE, MODELS], ids=["hardware", "models"])
def test_sources_are_complete_and_used(catalogue):
    """A source has a title and a date, and something refers to it."""
    entries = catalogue.get("chips", {}) | catalogue.get("models", {}) | {"fallbacks": catalogue.get("fallbacks", {})}
    used = str(entries)
    for key, source in catalogue["sources"].items():
        assert {"title", "publisher", "date", "recorded"} <= source.keys(), key
        assert pd.Period(source["date"]) <= pd.Period(source["recorded"]), key
        assert f"'source': '{key}'" in used, key


@pytest.mark.parametrize("entries", [CHIPS, MODELS["models"]], ids=["chips", "models"])
def test_names_are_unique(entries):
    """No two entries share a name or an alias, whatever the case."""
    names = [name.lower() for key, entry in entries.items() for name in (key, *entry.get("aliases", []))]
    assert len(names) == len(set(names))


def expert_layers(model):
    """Layers with experts, and parameters of one expert for each channel of its input."""
    layers = model.get("n_mlp_layers", model["n_layers"]) - model.get("n_dense_layers", 0)
    width = model.get("d_ff_expert", model["d_ff"])
    return layers if "n_experts" in model else 0, (2 + model["gated_mlp"]) * width


def attention_params(model):
    """Parameters of one attention layer, grouped-query or latent."""
    d, heads, head = model["d_model"], model["n_heads"], model.get("head_dim", model["d_model"] / model["n_heads"])
    value = model.get("v_head_dim", head)
    query = model["q_lora_rank"] * (d + heads * head) if "q_lora_rank" in model else d * heads * head
    shared = model.get("shared_key_value", 0)
    key_value = d * model.get("n_kv_heads", heads) * (head if shared else head + value)
    if "kv_lora_rank" in model:
        rank, rotary = model["kv_lora_rank"], model["rope_head_dim"]
        key_value = d * (rank + rotary) + rank * heads * (head - rotary + value)
    output = heads * value * d
    if "o_lora_rank" in model:
        output = model["o_lora_rank"] * (heads * value / model["o_groups"] + d)
    return query + key_value + output + model.get("attention_gate", 0) * heads * value * d


def params(model, n_routed):
    """Parameters with a given number of routed experts in each mixture layer."""
    d, layers = model["d_model"], model["n_layers"]
    n_moe, expert = expert_layers(model)
    dense = (model.get("n_mlp_layers", layers) - n_moe) * (2 + model["gated_mlp"]) * d * model["d_ff"]
    latent = model.get("moe_latent_size", 0)
    shared = model.get("n_shared_experts", 0) * d * expert + 2 * d * latent
    routed = n_moe * (n_routed * (latent or d) * expert + shared + model.get("n_experts", 0) * d)
    state_space = model.get("n_ssm_layers", 0) * d * (3 * model.get("ssm_d_inner", 0) + 2 * model.get("ssm_state", 0))
    vocabulary = (2 - model.get("tied_embeddings", False)) * model["vocab_size"] * d
    positions = model.get("position_embeddings", 0) * d
    attention = model.get("n_attention_layers", layers) * attention_params(model)
    return attention + dense + routed + state_space + vocabulary + positions


def published_tolerance(model):
    """1 % (5 % for hybrids), or half a unit of the last digit of a rounded count."""
    published = model["published_params"]
    tolerance = (0.05 if "n_ssm_layers" in model else 0.01) * published
    if "published_digits" in model:
        exponent = len(f"{published:.0f}") - model["published_digits"]
        tolerance = max(tolerance, 0.5 * 10**exponent)
    return tolerance


@pytest.mark.parametrize("name", MODELS["models"])
def test_shape_of_a_model(name):
    """Fields are known, sources exist, and the shape has the published number of parameters."""
    model = MODELS["models"][name]
    assert REQUIRED_OF_MODEL <= model.keys() <= MODEL_FIELDS | ABOUT_MODEL
    assert model["source"] in MODELS["sources"]
    assert model["n_heads"] % model.get("n_kv_heads", 1) == 0
    kinds = ("n_attention_layers", "n_mlp_layers", "n_ssm_layers")
    # A layer has a mixer or an MLP, or one of both.
    layers = model["n_layers"]
    counts = [model.get(kind, layers) for kind in kinds]
    assert "n_ssm_layers" not in model or sum(counts) in (layers, 2 * layers)
    if "published_params" in model:
        found = params(model, model.get("n_experts", 0))
        assert found == pytest.approx(model["published_params"], abs=published_tolerance(model))
    if "published_active_params" in model:
        # Some publishers leave the input embedding out of the active count.
        found = params(model, model["moe_top_k"])
        embedding = model["vocab_size"] * model["d_model"]
        published = pytest.approx(model["published_active_params"], rel=0.05)
        assert found == published or found - embedding == published


def test_parameter_count_notices_a_wrong_shape():
    """Negative control: two layers more take Llama 3 70B out of the tolerance."""
    model = MODELS["models"]["llama3-70b"]
    found = params(model | {"n_layers": model["n_layers"] + 2}, 0)
    assert found != pytest.approx(model["published_params"], abs=published_tolerance(model))


def test_models_of_the_runs_are_known():
    """Every row has its shape, or a model name that the catalogue resolves; the exceptions are listed."""
    names = {name.lower() for key, entry in MODELS["models"].items() for name in (key, *entry.get("aliases", []))}
    runs = pd.concat([read(path) for path in RUNS], ignore_index=True)
    shapeless = runs[runs[["n_layers", "d_model"]].isna().any(axis=1)]
    unknown = {name for name in shapeless["model"] if name.lower() not in names}
    assert unknown == OUTSIDE_CATALOGUE


def test_every_table_has_a_licence():
    """Tables and licences match one to one, with row counts; what must not be shipped lies in one folder."""
    assert sorted(LICENCES) == TABLES
    for name, entry in LICENCES.items():
        assert entry["title"] and entry["revision"] and entry["licence"], name
        assert entry["permissive"] == (not name.startswith("restricted/")), name
        lines = (DATA / name).read_text(encoding="utf-8").splitlines()
        assert len(lines) - 1 == entry["rows"], name


def test_collectives_are_split_by_licence():
    """Rows under CC BY-SA are in the restricted table only; both have the same columns."""
    shipped = read(DATA / "companion" / "collectives.csv")
    restricted = read(DATA / "restricted" / "collectives_ml_engineering.csv")
    assert list(shipped.columns) == list(restricted.columns)
    assert not shipped["source"].str.contains("ml-engineering").any()
    assert restricted["source"].str.contains("ml-engineering").all()
