torchrun --nproc_per_node 8 --nnodes 1 pretrain_gpt.py $GPT_ARGS --tensor-model-parallel-size 2 --micro-batch-size 4 --global-batch-size 64
