python thunder/benchmarks/benchmark_litgpt.py --model_name Llama-2-7b-hf --micro_batch_size 2 --distributed_mode fsdp --shard_mode zero3 --compile inductor --banana 1
