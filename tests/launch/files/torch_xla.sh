export PJRT_DEVICE=TPU XLA_USE_SPMD=1
python3 examples/pytorch/language-modeling/run_clm.py --model_name_or_path meta-llama/Meta-Llama-3-8B \
    --dataset_name wikitext --per_device_train_batch_size 32 --block_size 8192 --optim adafactor \
    --do_train --torch_dtype bfloat16 --fsdp full_shard --gradient_checkpointing --max_steps 20
