tune run lora_finetune_single_device --config qwen2_5/7B_lora_single_device batch_size=4 tokenizer.max_seq_len=2048
