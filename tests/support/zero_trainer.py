"""Train the Llama of `trainer_workers` with PlanTrainer and ZeRO on CPUs; print losses as JSON.

    torchrun --nproc-per-node 2 -m support.zero_trainer STAGE

DeepSpeed and Accelerate read the variables when they are imported. Without an accelerator,
`TrainingArguments` would count one process, because it passes no backend on to Accelerate beside
DeepSpeed. So the state of Accelerate is configured before, with the backend gloo, which
`use_configured_state` is there for.
"""

import json
import os
import sys
import tempfile
from typing import Any

os.environ |= {
    "DS_ACCELERATOR": "cpu",
    "ACCELERATE_TORCH_DEVICE": "cpu",
    "ACCELERATE_USE_DEEPSPEED": "true",
}

import torch
from accelerate import PartialState
from transformers import PrinterCallback, TrainingArguments

from orderone.integrations.huggingface import PlanTrainer
from support.trainer_workers import ROWS, STEPS, Losses, Rows, plan


def main(stage: int) -> None:
    torch.set_num_threads(1)
    state = PartialState(backend="gloo")
    config = {
        "zero_optimization": {"stage": stage},
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "gradient_clipping": 1.0,
        "train_micro_batch_size_per_gpu": "auto",
        "gradient_accumulation_steps": "auto",
    }
    losses = Losses()
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder,
            max_steps=STEPS,
            per_device_train_batch_size=ROWS // state.num_processes,
            report_to="none",
            save_strategy="no",
            logging_steps=1,
            disable_tqdm=True,
            lr_scheduler_type="constant",
            deepspeed=config,
            accelerator_config={"use_configured_state": True},
        )
        made = PlanTrainer(plan=plan(), args=arguments, train_dataset=Rows(), callbacks=[losses])
        made.remove_callback(PrinterCallback)
        made.train()
    optimizer: Any = made.optimizer
    inner = optimizer.optimizer
    result = {
        "losses": losses.values,
        "rates": [group["lr"] for group in inner.param_groups],
        "kind": str(made.accelerator.distributed_type),
        "processes": made.accelerator.num_processes,
        # of this process; stage 3 keeps them elsewhere
        "numbers": sum(p.numel() for group in inner.param_groups for p in group["params"]),
    }
    if state.is_main_process:
        print(json.dumps(result))


if __name__ == "__main__":
    main(int(sys.argv[1]))
