from unsloth import FastModel

model, tokenizer = FastModel.from_pretrained(model_name="unsloth/Qwen3-4B", max_seq_length=2048, load_in_4bit=False, full_finetuning=True)
model = FastModel.for_training(model, use_gradient_checkpointing=True)
args = TrainingArguments(per_device_train_batch_size=1, gradient_accumulation_steps=16, bf16=True, optim="adamw_torch_fused")
