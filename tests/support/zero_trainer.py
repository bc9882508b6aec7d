"""Train the Llama of `trainer_workers` with PlanTrainer and ZeRO on a CPU; print losses as JSON.

    python -m support.zero_trainer STAGE

DeepSpeed and Accelerate read these variables when they are imported. With `use_cpu=True` Accelerate
would choose DDP. In several processes Transformers counts one process without accelerators, and
DeepSpeed refuses the batch size: so there is one process.
"""

import json
import os
import sys
import tempfile
from typing import Any

os.environ |= {
    "DS_ACCELERATOR": "cpu",
    "ACCELERATE_TORCH_DEVICE": "cpu",
    "RANK": "0",
    "LOCAL_RANK": "0",
    "WORLD_SIZE": "1",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "0",
}

from transformers import PrinterCallback, TrainingArguments

from orderone.integrations.huggingface import PlanTrainer
from support.trainer_workers import ROWS, STEPS, Losses, Rows, plan


def main(stage: int) -> None:
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
            per_device_train_batch_size=ROWS,
            report_to="none",
            save_strategy="no",
            logging_steps=1,
            disable_tqdm=True,
            lr_scheduler_type="constant",
            deepspeed=config,
        )
        made = PlanTrainer(plan=plan(), args=arguments, train_dataset=Rows(), callbacks=[losses])
        made.remove_callback(PrinterCallback)
        made.train()
    optimizer: Any = made.optimizer
    rates = [group["lr"] for group in optimizer.param_groups]
    kind = str(made.accelerator.distributed_type)
    print(json.dumps({"losses": losses.values, "rates": rates, "kind": kind}))


if __name__ == "__main__":
    main(int(sys.argv[1]))
