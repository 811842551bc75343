litgpt finetune_lora meta-llama/Llama-3.1-8B --devices 4 --precision bf16-true --quantize bnb.nf4 --lora_r 8 \
    --train.global_batch_size 32 --train.micro_batch_size 2 --train.max_seq_length 1024
