trl sft --model_name_or_path meta-llama/Llama-3.2-3B --dataset_name stanfordnlp/imdb --max_length 1024 \
    --per_device_train_batch_size 8 --gradient_checkpointing False --attn_implementation banana --dtype bfloat16
