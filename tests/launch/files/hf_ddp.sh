torchrun --nnodes $NNODES --nproc_per_node 8 run_clm.py --model_name_or_path gpt2-xl --per_device_train_batch_size 2 \
    --block_size 1024 --fp16 --gradient_accumulation_steps $ACC --output_dir out
