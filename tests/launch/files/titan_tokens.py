def qwen3_14b():
    config = Trainer.Config(model_spec=model_registry('14B'))
    config.training.max_context_length = 4096
    config.training.num_tokens_per_microbatch_per_dp_rank = 8192
    config.training.num_tokens_per_train_step = 524288
    config.training.disable_cuda_graphs = True
    config.parallelism.data_parallel_shard_degree = 16
    config.activation_checkpoint = None
    return config
