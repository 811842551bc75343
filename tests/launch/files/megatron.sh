TP=2
MODEL_ARGS=(
  --num-layers 24
  --hidden-size 2048  # wide
  --num-attention-heads 16
  --seq-length 2048
  --max-position-embeddings 2048
)
torchrun --nproc_per_node 8 --nnodes 1 pretrain_gpt.py ${MODEL_ARGS[@]} --tensor-model-parallel-size $TP --micro-batch-size 4 --global-batch-size 64 --vocab-size 50257 --bf16 --recompute-granularity selective --recompute-modules core_attn mlp --banana 1
