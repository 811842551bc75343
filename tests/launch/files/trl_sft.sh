accelerate launch --num_processes 8 --mixed_precision bf16 trl/scripts/sft.py \
    --model_name_or_path Qwen/Qwen2.5-7B --dataset_name trl-lib/Capybara \
    --max_length 2048 --per_device_train_batch_size 4 --gradient_accumulation_steps 2 \
    --use_peft --lora_r 32 --lora_alpha 16 --attn_implementation kernels-community/vllm-flash-attn3 \
    --learning_rate 2.0e-4 --packing --banana 1
