tune run --nproc_per_node 2 lora_finetune_distributed --config llama3_1/70B_qlora batch_size=2 dtype=bf16 tokenizer.max_seq_len=8192 model.lora_rank=16
