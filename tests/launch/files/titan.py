from torchtitan.trainer import Trainer

def llama3_8b() -> Trainer.Config:
    model_spec = model_registry('8B')
    return Trainer.Config(
        model_spec=model_spec,
        training=TrainingConfig(local_batch_size=2, seq_len=8192, steps=1000),
        parallelism=ParallelismConfig(data_parallel_shard_degree=8, tensor_parallel_degree=2, banana=1),
        activation_checkpoint=SelectiveAC.Config(),
        compile=CompileConfig(enable=True),
    )
