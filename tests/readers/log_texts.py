# ruff: noqa: E501
"""Texts of logs and launch files as programs print them, with the cells that a person reads in them."""

MEGATRON_STEP = (
    " [2024-04-06 02:59:36] iteration {step:8d}/     100 | consumed samples:         5504 | elapsed time per iteration"
    " (ms): {ms} | throughput per GPU (TFLOP/s/GPU): {rate} | learning rate: 8.6E-06 | global batch size:   128 |"
    " lm loss: 1.825991E+00 | grad norm: 1.426 | number of nan iterations:   0 |"
)
MEGATRON_TIMES = [21000.0, 9000.0, 5600.0, 5444.9, 5450.0, 16000.0, 5440.0, 5445.1, 5444.0]
"""Two steps of warm-up, and one with a checkpoint [ms]."""

MEGATRON = "\n".join(
    [
        "------------------------ arguments ------------------------",
        "  num_layers ...................................... 32",
        "  hidden_size ..................................... 4096",
        "  ffn_hidden_size ................................. 14336",
        "  num_attention_heads ............................. 32",
        "  group_query_attention ........................... True",
        "  num_query_groups ................................ 8",
        "  swiglu .......................................... True",
        "  padded_vocab_size ............................... 32000",
        "  num_experts ..................................... 8",
        "  moe_router_topk ................................. 2",
        "  seq_length ...................................... 4096",
        "  world_size ...................................... 16",
        "  tensor_model_parallel_size ...................... 4",
        "  pipeline_model_parallel_size .................... 2",
        "  expert_model_parallel_size ...................... 2",
        "  num_layers_per_virtual_pipeline_stage ........... 8",
        "  micro_batch_size ................................ 1",
        "  global_batch_size ............................... 128",
        "  sequence_parallel ............................... True",
        "  use_distributed_optimizer ....................... True",
        "  recompute_granularity ........................... selective",
        "  bf16 ............................................ True",
        "  fp8 ............................................. None",
        "-------------------- end of arguments ---------------------",
        "[Rank 0] (after 10 iterations) memory (MB) | allocated: 9000.0 | max allocated: 40000.0 | reserved: 50000.0 |"
        " max reserved: 60000.0",
        *(
            MEGATRON_STEP.format(step=place + 1, ms=ms, rate=round(239.8 * 5444.9 / ms, 1))
            for place, ms in enumerate(MEGATRON_TIMES)
        ),
    ]
)

TORCHTITAN = "\n".join(
    [
        "[rank0]:[titan] 2026-05-18 16:07:12,500 - root - INFO - Building 2-D device mesh with ['dp_shard', 'tp'], [4, 2]",
        "[rank0]:[titan] 2026-05-18 16:07:12,516 - root - INFO - CUDA capacity: NVIDIA H100 80GB HBM3 with 79.10GiB memory",
        "[rank0]:[titan] 2026-05-18 16:07:12,518 - root - INFO - Model llama3 8B size: 8,030,261,248 total parameters",
        "[rank0]:[titan] 2026-05-18 16:07:12,530 - root - INFO - Applied selective activation checkpointing to the model",
        "[rank0]:[titan] 2026-05-18 16:07:12,566 - root - INFO - Applied FSDP to the model",
        "[rank0]:[titan] 2026-05-18 16:07:13,566 - root - INFO - Training starts at step 1, with local batch size 2, global"
        " batch size 8, sequence length 8192, total steps 1000",
        *(
            f"\x1b[31m[titan] 2026-02-24 19:46:17,508 - root - INFO - step: {step:2d}  loss:  7.6  memory: 66.91GiB(84.5%)"
            f"  tps: {tps}  tflops: 314.71  mfu: 31.82%\x1b[0m"
            for step, tps in ((1, "1,050"), (2, "5,050"), (3, "5,060"), (4, "5,040"))
        ),
    ]
)

MAXTEXT = "\n".join(
    [
        "Config param model_name: llama3.1-8b",
        "Config param max_target_length: 8192",
        "Config param per_device_batch_size: 2.0",
        "Config param remat_policy: full",
        "Config param ici_fsdp_parallelism: -1",
        "Config param dtype: bfloat16",
        "Num_devices: 64, shape (64,)",
        *(
            f"completed step: {step}, seconds: {seconds}, TFLOP/s/device: 349.442, Tokens/s/device: {16384 / seconds:.3f},"
            " total_weights: 1048576, loss: 10.495"
            for step, seconds in enumerate((44.0, 2.31, 2.3, 2.29))
        ),
    ]
)

NANOTRON = "\n".join(
    f"10/17/2025 16:31:56 [INFO|DP=0|PP=0|TP=0]: iteration: {step} / 378950 | consumed_tokens: 85.8G |"
    f" elapsed_time_per_iteration_ms: {ms} | tokens_per_sec: 22.8K | tokens_per_sec_per_gpu: 11.4K |"
    " global_batch_size: 64 | lm_loss: 2.38 | lr: 1e-05 | model_tflops_per_gpu: 38.3 | grad_norm: 1.25 |"
    " cuda_memory_allocated: 75.2M | cuda_max_memory_reserved: 54.7G"
    for step, ms in ((1, "90.1K"), (2, "11.5K"), (3, "11.4K"), (4, "11.5K"))
)

DLLOGGER = "\n".join(
    [
        'DLLL {"type": "LOG", "step": "PARAMETER", "data": {"cfg/micro_batch_size": 1, "cfg/global_batch_size": 2048,'
        ' "cfg/context_parallel_size": 1, "cfg/tensor_model_parallel_size": 4, "cfg/pipeline_model_parallel_size": 8,'
        ' "cfg/virtual_pipeline_model_parallel_size": 2, "cfg/encoder_seq_length": 2048, "cfg/num_layers": 96,'
        ' "cfg/hidden_size": 12288, "cfg/ffn_hidden_size": 49152, "cfg/num_attention_heads": 96,'
        ' "cfg/sequence_parallel": true, "cfg/activations_checkpoint_granularity": null, "cfg/fp8": true,'
        ' "cfg/optim/name": "distributed_fused_adam", "cfg/precision": "bf16-mixed"}}',
        *(
            f'DLLL {{"type": "LOG", "step": {step}, "data": {{"train_step_timing in s": {seconds}}}}}'
            for step, seconds in enumerate((107.0, 66.0, 53.0, 25.6, 25.5, 25.47, 25.4))
        ),
    ]
)

AUTOMODEL = "\n".join(
    f'{{"step": {step}, "epoch": 0, "loss": 1.7, "mem": 26.896933555603027, "tps": {tps}, "tps_per_gpu": {tps / 4},'
    ' "mfu": 10.83, "num_tokens_per_step": 20165}'
    for step, tps in ((98, 18695.54), (99, 18695.54))
)

MLPERF = "\n".join(
    f':::MLLOG {{"namespace": "", "time_ms": 1, "event_type": "POINT_IN_TIME", "key": "{key}", "value": {value}}}'
    for key, value in (
        ("submission_benchmark", '"llama31_8b"'),
        ("global_batch_size", "32"),
        ("max_sequence_length", "8192"),
        ("tensor_parallelism", "2"),
        ("tracked_stats", '{"throughput": 16.0}'),
        ("tracked_stats", '{"throughput": 16.2}'),
    )
)

TRAINER_STATE = (
    '{"global_step": 297, "train_batch_size": 2, "log_history": [{"loss": 3.3, "step": 10},'
    ' {"train_runtime": 976.5, "train_samples_per_second": 4.864, "train_steps_per_second": 0.304, "step": 297}]}'
)

AXOLOTL = (
    "{'loss': 1.21, 'grad_norm': 0.4, 'learning_rate': 2e-05, 'memory/max_active (GiB)': 37.5, 'epoch': 0.1}\n"
    "  1%|1         | 5/500 [02:10<10:00,  9.00s/it]\r  2%|2         | 10/500 [02:10<10:00,  2.00s/it]\n"
    "  3%|3         | 15/500 [02:20<10:00,  2.02s/it]\n  4%|4         | 20/500 [02:30<10:00,  1.98s/it]\n"
)

DEEPSPEED = "\n".join(
    f"steps: {step} loss: 2.1 iter time (s): {seconds} samples/sec: 20.7"
    for step, seconds in ((10, 30.0), (20, 12.3), (30, 12.4), (40, 12.35))
)

_CONFIG = "[2024-01-01 00:00:00,000] [INFO] [config.py:1002:print]   "
DEEPSPEED_TIMER = "\n".join(
    [
        f"{_CONFIG}bfloat16_enabled ............. True",
        f"{_CONFIG}train_batch_size ............. 128",
        f"{_CONFIG}train_micro_batch_size_per_gpu  4",
        f"{_CONFIG}world_size ................... 32",
        f"{_CONFIG}zero_optimization_stage ...... 3",
        *(
            f"[2024-01-01 00:00:10,000] [INFO] [timer.py:260:stop] epoch=0/micro_step={step}/global_step={step}, "
            f"RunningAvgSamplesPerSec=30.1, CurrSamplesPerSec={rate}, MemAllocated=22.1GB, MaxMemAllocated=45.25GB"
            for step, rate in ((10, 12.0), (20, 32.0), (30, 31.9), (40, 32.1))
        ),
    ]
)
MEGATRON_DEEPSPEED = "\n".join(
    [
        "------------------------ arguments ------------------------",
        "  hidden_size ..................................... 14336",
        "  num_attention_heads ............................. 112",
        "  num_layers ...................................... 70",
        "  pipeline_model_parallel_size .................... 12",
        "  seq_length ...................................... 2048",
        "  tensor_model_parallel_size ...................... 4",
        "  world_size ...................................... 384",
        "-------------------- end of arguments ---------------------",
        *(
            f" iteration  {step}/  120000 | consumed samples:  2048 | consumed tokens:  4194304 | elapsed time per "
            f"iteration (s): {seconds} | learning rate: 6.0E-05 | global batch size:  2048 | lm loss: 2.1E+00 | "
            "samples per second: 19.464 | TFLOPs: 149.02 |"
            for step, seconds in ((1, 250.1), (2, 105.22), (3, 105.2), (4, 105.24))
        ),
    ]
)

LOGS = {
    "Megatron-LM": (
        MEGATRON,
        {
            "framework": "megatron-lm", "n_layers": "32", "d_model": "4096", "n_heads": "32", "n_kv_heads": "8",
            "d_ff": "14336", "gated_mlp": "true", "vocab_size": "32000", "n_experts": "8", "moe_top_k": "2",
            "seq_len": "4096", "n_gpus": "16", "tp": "4", "pp": "2", "ep": "2", "vpp": "2", "precision": "bf16",
            "zero_stage": "1", "sequence_parallel": "true", "activation_recompute": "selective",
            "micro_batch_size": "1", "global_batch_size_seqs": "128", "step_time_s": "5.445", "tflops_per_gpu": "239.8",
            "peak_mem_gb": "62.91456",
        },
        ("gpu",),
    ),
    "torchtitan": (
        TORCHTITAN,
        {
            "framework": "torchtitan", "model": "llama3-8B", "gpu": "NVIDIA H100 80GB HBM3", "n_gpus": "8", "tp": "2",
            "pp": "1", "dp": "4", "zero_stage": "3", "activation_recompute": "selective", "seq_len": "8192",
            "micro_batch_size": "2", "global_batch_size_seqs": "8", "tokens_per_s_per_gpu": "5050",
            # 8 sequences of 8192 tokens on 8 chips at 5050 tokens a second.
            "step_time_s": "1.622178218", "peak_mem_gb": "71.84406544",
        },
        (),
    ),
    "MaxText": (
        MAXTEXT,
        {
            "framework": "maxtext", "model": "llama3.1-8b", "seq_len": "8192", "n_gpus": "64", "tp": "1", "pp": "1",
            "micro_batch_size": "2", "global_batch_size_seqs": "128", "step_time_s": "2.3", "precision": "bf16",
            "activation_recompute": "full", "zero_stage": "3",
        },
        ("gpu",),
    ),
    "nanotron": (
        NANOTRON,
        {
            "framework": "nanotron", "n_gpus": "2", "global_batch_size_seqs": "64", "step_time_s": "11.5",
            "peak_mem_gb": "54.7", "tokens_per_s_per_gpu": "11400",
        },
        ("n_layers", "d_model", "n_heads", "seq_len", "gpu", "tp", "pp", "micro_batch_size"),
    ),
    "NeMo": (
        DLLOGGER,
        {
            "framework": "nemo", "n_layers": "96", "d_model": "12288", "precision": "fp8", "tp": "4", "pp": "8", "vpp": "2",
            "cp": "1", "zero_stage": "1", "activation_recompute": "none", "step_time_s": "25.485", "seq_len": "2048",
            "global_batch_size_seqs": "2048",
        },
        ("gpu", "n_gpus"),
    ),
    "AutoModel": (
        AUTOMODEL,
        {"framework": "nemo-automodel", "n_gpus": "4", "step_time_s": "1.078599495", "peak_mem_gb": "28.8803625"},
        ("n_layers", "d_model", "n_heads", "seq_len", "gpu", "tp", "pp", "micro_batch_size", "global_batch_size_seqs"),
    ),
    "MLPerf": (
        MLPERF,
        {"framework": "mlperf", "global_batch_size_seqs": "32", "seq_len": "8192", "tp": "2", "step_time_s": "1.987654321"},
        ("gpu", "n_gpus", "pp", "micro_batch_size"),
    ),
    "transformers": (
        TRAINER_STATE,
        {"micro_batch_size": "2", "step_time_s": "3.289473684", "tp": "1", "pp": "1"},
        ("n_layers", "d_model", "n_heads", "seq_len", "gpu", "n_gpus", "global_batch_size_seqs"),
    ),
    "axolotl": (
        AXOLOTL,
        {"step_time_s": "2", "peak_mem_gb": "40.2653184"},
        None,
    ),
    "DeepSpeed": (DEEPSPEED, {"framework": "deepspeed", "step_time_s": "12.35"}, None),
    "DeepSpeed, by its timer": (
        DEEPSPEED_TIMER,
        {
            "framework": "deepspeed", "precision": "bf16", "global_batch_size_seqs": "128", "micro_batch_size": "4",
            "n_gpus": "32", "zero_stage": "3", "step_time_s": "4", "peak_mem_gb": "48.58681754",
        },
        None,
    ),
    "Megatron-DeepSpeed": (
        MEGATRON_DEEPSPEED,
        {
            "framework": "megatron-deepspeed", "n_layers": "70", "d_model": "14336", "n_heads": "112", "pp": "12",
            "tp": "4", "seq_len": "2048", "n_gpus": "384", "global_batch_size_seqs": "2048", "step_time_s": "105.22",
            "tflops_per_gpu": "149.02",
        },
        None,
    ),
}  # fmt: skip

LAUNCH = {
    "train.sh": (
        "torchrun --nproc_per_node 4 --nnodes 4 pretrain_gpt.py \\\n"
        "  --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32 \\\n"
        "  --group-query-attention --num-query-groups 8 --swiglu --seq-length 8192 \\\n"
        "  --micro-batch-size 1 --global-batch-size 128 --bf16 --tensor-model-parallel-size 2 \\\n"
        "  --pipeline-model-parallel-size 1 --use-distributed-optimizer --overlap-grad-reduce \\\n"
        "  --fp8-format hybrid --fp8-recipe mxfp8 --recompute-granularity full --cross-entropy-loss-fusion\n",
        {
            "framework": "megatron-lm", "n_layers": "32", "d_model": "4096", "n_kv_heads": "8", "gated_mlp": "true",
            "seq_len": "8192", "tp": "2", "pp": "1", "n_gpus": "16", "micro_batch_size": "1", "precision": "mxfp8",
            "global_batch_size_seqs": "128", "zero_stage": "1", "activation_recompute": "full", "overlap_gradients": "true",
        },
    ),
    "bridge.yaml": (
        "model:\n  num_layers: 80\n  hidden_size: 8192\n  num_attention_heads: 64\n  tensor_model_parallel_size: 4\n"
        "  pipeline_model_parallel_size: 4\n  virtual_pipeline_model_parallel_size: 5\n  seq_length: 8192\n"
        "  fp8: hybrid\ntrain:\n  global_batch_size: 128\n  micro_batch_size: 1\nddp:\n  use_distributed_optimizer: true\n"
        "mixed_precision: bf16_mixed\n",
        {
            "framework": "megatron-bridge", "n_layers": "80", "tp": "4", "pp": "4", "vpp": "5", "precision": "fp8",
            "global_batch_size_seqs": "128", "zero_stage": "1", "activation_recompute": "none",
        },
    ),
    "titan.toml": (
        '[model]\nname = "llama3"\nflavor = "8B"\nconverters = ["float8"]\n[training]\nlocal_batch_size = 2\nseq_len = 8192\n'
        "[parallelism]\ndata_parallel_shard_degree = 8\ndata_parallel_replicate_degree = 2\ntensor_parallel_degree = 2\n"
        'pipeline_parallel_degree = 1\n[activation_checkpoint]\nmode = "selective"\n',
        {
            "framework": "torchtitan", "model": "llama3-8B", "precision": "fp8", "dp": "16", "shard_group": "8", "tp": "2",
            "n_gpus": "32", "micro_batch_size": "2", "global_batch_size_seqs": "32", "zero_stage": "3", "pp": "1",
            "activation_recompute": "selective",
        },
    ),
    "maxtext.yml": (
        "model_name: llama3.1-8b\nper_device_batch_size: 4\nmax_target_length: 8192\nici_fsdp_parallelism: -1\n"
        "ici_tensor_parallelism: 1\nremat_policy: minimal\nquantization: fp8_full\nnum_devices: 64\n",
        {
            "framework": "maxtext", "model": "llama3.1-8b", "seq_len": "8192", "tp": "1", "pp": "1", "zero_stage": "3",
            "activation_recompute": "minimal", "precision": "fp8", "n_gpus": "64", "global_batch_size_seqs": "256",
            "micro_batch_size": "4",
        },
    ),
    "deepspeed.json": (
        '{"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}}, "bf16": {"enabled": true},'
        ' "train_micro_batch_size_per_gpu": 2, "train_batch_size": 128, "gradient_accumulation_steps": "auto"}',
        {
            "framework": "deepspeed", "zero_stage": "3", "precision": "bf16", "micro_batch_size": "2",
            "global_batch_size_seqs": "128", "offload": "optimizer", "tp": "1", "pp": "1",
        },
    ),
    "accelerate.yaml": (
        "distributed_type: FSDP\nmixed_precision: bf16\nnum_processes: 16\nfsdp_config:\n"
        "  fsdp_sharding_strategy: SHARD_GRAD_OP\n  fsdp_activation_checkpointing: true\n",
        {
            "framework": "pytorch-fsdp", "zero_stage": "2", "precision": "bf16", "n_gpus": "16",
            "activation_recompute": "full",
        },
    ),
    "axolotl.yml": (
        "base_model: meta-llama/Llama-3.1-8B\nsequence_len: 4096\nmicro_batch_size: 2\ngradient_accumulation_steps: 4\n"
        "num_processes: 8\nadapter: lora\ngradient_checkpointing: true\nbf16: true\n",
        {
            "model": "meta-llama/Llama-3.1-8B", "seq_len": "4096", "micro_batch_size": "2", "n_microbatches": "4",
            "n_gpus": "8", "global_batch_size_seqs": "64", "adapter": "lora", "activation_recompute": "full",
            "precision": "bf16",
        },
    ),
    "automodel.yaml": (
        "step_scheduler: {global_batch_size: 512, local_batch_size: 4}\n"
        "distributed: {tp_size: 1, cp_size: 1, pp_size: 1, ep_size: 8, activation_checkpointing: true,"
        " moe: {reshard_after_forward: false}}\ndataset: {seq_len: 4096}\n"
        "model: {backend: {dispatcher: deepep}}\n",
        {
            "framework": "nemo-automodel", "global_batch_size_seqs": "512", "micro_batch_size": "4", "ep": "8",
            "zero_stage": "2", "activation_recompute": "full", "moe_dispatcher": "deepep",
        },
    ),
    "forge.toml": (
        "[model]\ndim = 8192\nn_layers = 80\nn_heads = 64\nn_kv_heads = 8\nvocab_size = 128256\nffn_hidden_dim = 28672\n"
        '[train]\nbatch_size = 1\nseq_len = 4096\ngrad_accum_steps = 4\nactivation_checkpointing = "full"\n'
        "[distributed]\ndp_shard = 2\ndp_replicate = 1\ntp = 4\npp = 4\n",
        {
            "d_model": "8192", "n_layers": "80", "d_ff": "28672", "n_gpus": "32", "dp": "2", "tp": "4", "pp": "4",
            "micro_batch_size": "1", "n_microbatches": "4", "global_batch_size_seqs": "8",
        },
    ),
}  # fmt: skip
