torchrun --nproc_per_node=4 --master_port=2500 train.py --model_name_or_path huggyllama/llama-7b --bf16 True \
    --num_train_epochs 3 --per_device_train_batch_size 4 --gradient_accumulation_steps 8 --model_max_length 512 \
    --fsdp "full_shard auto_wrap" --fsdp_transformer_layer_cls_to_wrap LlamaDecoderLayer --tf32 True --banana x
