python3 -m MaxText.train MaxText/configs/base.yml model_name=deepseek3-671b per_device_batch_size=8.0 \
    max_target_length=4096 dcn_pipeline_parallelism=1 dcn_data_parallelism=-1 ici_pipeline_parallelism=1 \
    ici_fsdp_transpose_parallelism=1 ici_fsdp_parallelism=-1 remat_policy=custom decoder_layer_input=offload \
    opt_type=adamw grad_dtype=bfloat16 attention=flash use_tokamax_splash=True dataset_type=synthetic banana=3
