torchrun --nproc_per_node 4 --nnodes 4 pretrain_gpt.py \
  --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32 \
  --group-query-attention --num-query-groups 8 --swiglu --seq-length 8192 \
  --micro-batch-size 1 --global-batch-size 128 --bf16 --tensor-model-parallel-size 2 \
  --pipeline-model-parallel-size 1 --use-distributed-optimizer --overlap-grad-reduce \
  --fp8-format hybrid --fp8-recipe mxfp8 --recompute-granularity full --cross-entropy-loss-fusion
