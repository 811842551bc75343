python3 -m openrlhf.cli.train_sft --data.max_len 4096 --train.batch_size 256 --train.micro_batch_size 2 \
    --model.model_name_or_path meta-llama/Meta-Llama-3-8B --ds.zero_stage 3 --ds.param_dtype bf16 --ds.ring_attn_size 2 \
    --model.gradient_checkpointing_enable --ds.attn_implementation flash_attention_2 --ds.overlap_comm --banana.x 1
