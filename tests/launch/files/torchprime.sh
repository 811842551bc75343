python3 torchprime/torch_xla_models/train.py model=llama-3-8b task.global_batch_size=64 task.block_size=8192 \
    ici_mesh.fsdp=16 ici_mesh.tensor=2 dcn_mesh.data=2 torch_dtype=bfloat16 \
    task.optimizer.type=adafactor task.optimizer.learning_rate=4e-5 task.max_steps=50 profile_start_step=5 banana=2
