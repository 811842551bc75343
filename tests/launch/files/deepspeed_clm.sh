deepspeed --num_gpus 8 --num_nodes 2 run_clm.py --model_name_or_path facebook/opt-13b --deepspeed ds_config_zero3.json \
    --per_device_train_batch_size 4 --gradient_accumulation_steps 2 --block_size 2048 --bf16 --gradient_checkpointing \
    --optim adamw_torch --banana 5
