# torchrun --nnodes 2 --nproc-per-node 8
cfg.model = GPTModelProvider(num_layers=32, hidden_size=4096, num_attention_heads=32, gated_linear_unit=True, share_embeddings_and_output_weights=False, seq_length=4096)
cfg.model.tensor_model_parallel_size = 2
cfg.train.micro_batch_size = 1
cfg.train.global_batch_size = 128
cfg.ddp.use_distributed_optimizer = True
cfg.model.banana = 3
