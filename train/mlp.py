"""Train a small multi-layer perceptron with DeepSpeed, on one process or on many nodes alike."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import socket
import sys
import time
import warnings
from pathlib import Path

import deepspeed
import torch
import torch.distributed as dist
from deepspeed.accelerator import get_accelerator
from inputs import BatchSizes, InputError, Samples, batch_sizes, find_data, read_samples, split, synthetic_samples
from torch import nn
from torch.utils.data import DistributedSampler

HERE = Path(__file__).resolve().parent
HIDDEN = 128

# DeepSpeed 0.19.8 calls what torch 2.13 has renamed, and every rank would say so.
warnings.filterwarnings("ignore", module="torch.distributed.c10d_logger", category=FutureWarning)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--deepspeed_config", type=Path, default=HERE / "ds_config.json")
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("TRACKSIDE_DATA") or HERE / "data"))
    parser.add_argument("--synthetic", type=int, nargs="?", const=10, metavar="N", help="N made-up classes instead")
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--max-steps", type=int, help="stop after this many optimizer steps")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, default=Path(os.environ.get("TRACKSIDE_OUTPUT") or "output"))
    parser.add_argument("--resume", type=Path, metavar="DIR", help="a checkpoint folder of an earlier training")
    parser.add_argument("--save-every", type=int, default=10, metavar="N", help="epochs between checkpoints")
    parser.add_argument("--local_rank", "--local-rank", type=int, default=0, help="LOCAL_RANK counts before it")
    return parser.parse_args()


def start_process_group(local_rank: int) -> torch.device:
    """Join the other ranks, or be the only one where no launcher named any; return this rank's device."""
    if "RANK" not in os.environ and "OMPI_COMM_WORLD_RANK" not in os.environ:
        os.environ.update(RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
    if "RANK" in os.environ:
        os.environ.setdefault("LOCAL_RANK", str(local_rank))
    if "OMP_NUM_THREADS" not in os.environ:
        # A model of this size gains nothing from threads, and ranks that share a machine's cores lose by them.
        torch.set_num_threads(1)
    on_gpu = get_accelerator().device_name() == "cuda"
    deepspeed.init_distributed(dist_backend="nccl" if on_gpu else "gloo", verbose=False)
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    place = f"on {socket.gethostname()} ({dist.get_backend()}, {device})"
    print(f"rank {dist.get_rank()} of {dist.get_world_size()} {place}", flush=True)
    return device


def read_config(path: Path, device: torch.device) -> dict:
    try:
        config = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: {error}") from error
    wants_bf16 = config.get("bf16", {}).get("enabled", False)
    if wants_bf16 and device.type == "cuda" and not torch.cuda.is_bf16_supported(including_emulation=False):
        name = torch.cuda.get_device_name(device)
        raise InputError(f'{path}: {name} has no bf16; set "bf16" to not enabled and "fp16": {{"enabled": true}}')
    return config


class Trainer:
    """One rank's model, its data, and the DeepSpeed engine between them."""

    def __init__(self, samples: Samples, config: dict, sizes: BatchSizes, seed: int, device: torch.device) -> None:
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(samples.width, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, samples.classes))
        self.engine, _, _, _ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
        # The configuration decides the precision; inputs of any other are an error in the first layer.
        self.dtype = next(self.engine.parameters()).dtype
        self.sizes = sizes
        self.device = device
        features, labels = torch.tensor(samples.features), torch.tensor(samples.labels)
        training, held_out = split(len(labels))
        # One scale for all columns: a pixel that is nearly always blank must not become the loudest.
        features = (features - features[training].mean(dim=0)) / features[training].std().clamp(min=1e-12)
        self.features, self.labels = features[training].to(device, self.dtype), labels[training].to(device)
        self.test_features, self.test_labels = features[held_out].to(device, self.dtype), labels[held_out].to(device)
        self.sampler = DistributedSampler(self.labels, seed=seed, drop_last=True)
        self.steps_per_epoch = len(training) // sizes.train
        if not self.steps_per_epoch:
            raise InputError(f"{len(training)} training samples are fewer than one batch of {sizes.train}")

    def rows(self, epoch: int) -> torch.Tensor:
        """Return this rank's samples of an epoch, of shape (steps, accumulation, micro-batch).

        Rank r has every world-size-th sample of one shuffle, so a step sees the same samples for any world size.
        """
        self.sampler.set_epoch(epoch)
        shape = (self.steps_per_epoch, self.sizes.accumulation, self.sizes.micro)
        count = shape[0] * shape[1] * shape[2]
        return torch.tensor(list(self.sampler)[:count]).view(shape)

    def train(self, rows: torch.Tensor) -> list[float]:
        """Take one optimizer step for each of `rows`; return each step's mean loss over all ranks."""
        losses = torch.zeros(len(rows), device=self.device)
        for step, micro_batches in enumerate(rows.to(self.device)):
            for batch in micro_batches:
                loss = nn.functional.cross_entropy(self.engine(self.features[batch]).float(), self.labels[batch])
                self.engine.backward(loss)
                self.engine.step()  # changes the parameters at the last micro-batch of a step only
                losses[step] += loss.detach() / self.sizes.accumulation
        # One all-reduce for all the losses of an epoch: on a model this small, one for each step would be felt.
        dist.all_reduce(losses)
        return (losses / dist.get_world_size()).tolist()

    @torch.no_grad()
    def accuracy(self) -> float:
        """Return the share of held-out samples that the model names rightly; every rank computes it alike."""
        self.engine.eval()
        right = self.engine(self.test_features).argmax(dim=1) == self.test_labels
        self.engine.train()
        return right.float().mean().item()

    def parameter_sha256(self) -> str:
        digest = hashlib.sha256()
        parameters = list(self.engine.parameters())
        with deepspeed.zero.GatheredParameters(parameters):  # whole already, but for ZeRO-3
            for parameter in parameters:
                digest.update(parameter.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()

    def save(self, folder: Path, epoch: int) -> None:
        self.engine.save_checkpoint(str(folder), tag=f"epoch{epoch}", client_state={"epoch": epoch})

    def load(self, folder: Path) -> int:
        """Take up the checkpoint in `folder`; return how many epochs it holds."""
        # DeepSpeed writes the name of the latest one on rank 0 only, and that disk may not be shared.
        latest = folder / "latest"
        tag = [latest.read_text().strip() if dist.get_rank() == 0 and latest.is_file() else None]
        dist.broadcast_object_list(tag)
        if tag[0] is None:
            raise InputError(f"{latest}: no such file on rank 0's node; give --resume the folder named checkpoint")
        try:
            _, state = self.engine.load_checkpoint(str(folder), tag=tag[0])
        except FileNotFoundError as error:
            where = f"{error.filename or folder / tag[0]}: not on {socket.gethostname()}"
            raise InputError(f"{where}; every rank resumes on the node that holds what it saved") from error
        return state["epoch"]


def prepare(arguments: argparse.Namespace) -> tuple[Trainer, int]:
    """Return the trainer and the epoch it begins with."""
    made_up = arguments.synthetic
    samples = synthetic_samples(made_up) if made_up else read_samples(find_data(arguments.data))
    device = start_process_group(arguments.local_rank)
    config = read_config(arguments.deepspeed_config, device)
    trainer = Trainer(samples, config, batch_sizes(config, dist.get_world_size()), arguments.seed, device)
    done = trainer.load(arguments.resume) if arguments.resume else 0
    steps = trainer.engine.global_steps
    if done >= arguments.epochs or (arguments.max_steps and steps >= arguments.max_steps):
        raise InputError(f"nothing is left to train: {done} epochs, {steps} steps are done; raise the limit")
    return trainer, done + 1


def train(trainer: Trainer, first_epoch: int, arguments: argparse.Namespace, checkpoint: Path) -> dict:
    """Train and save; return this rank's record of it."""
    record = {"losses": [], "loss_per_epoch": [], "accuracy_per_epoch": [], "seen": []}
    start = time.perf_counter()
    for epoch in range(first_epoch, arguments.epochs + 1):
        epoch_start = time.perf_counter()
        rows = trainer.rows(epoch)
        if arguments.max_steps:
            rows = rows[: arguments.max_steps - trainer.engine.global_steps]
        record["seen"] = record["seen"] or rows.flatten().tolist()
        losses = trainer.train(rows)
        rate = len(rows) * trainer.sizes.train / (time.perf_counter() - epoch_start) / 1000
        loss, accuracy, step = sum(losses) / len(losses), trainer.accuracy(), trainer.engine.global_steps
        record["losses"] += losses
        record["loss_per_epoch"].append(loss)
        record["accuracy_per_epoch"].append(accuracy)
        if dist.get_rank() == 0:
            place = f"epoch {epoch}/{arguments.epochs}  step {step}"
            print(f"{place}  loss {loss:.4f}  accuracy {accuracy:.3f}  {rate:.1f} samples/ms", flush=True)
        stopped = step == arguments.max_steps
        if stopped or epoch == arguments.epochs or epoch % arguments.save_every == 0:
            # An epoch cut short counts as not done: a resumed training repeats it.
            trainer.save(checkpoint, epoch if len(rows) == trainer.steps_per_epoch else epoch - 1)
        if stopped:
            break
    record["seconds"] = round(time.perf_counter() - start, 3)
    return record


def conclude(trainer: Trainer, record: dict, checkpoint: Path) -> bool:
    """Gather what every rank saw and holds, write the result, and say whether the ranks are as they must be."""
    reports: list = [None] * dist.get_world_size()
    dist.all_gather_object(reports, (socket.gethostname(), trainer.parameter_sha256(), set(record.pop("seen"))))
    hosts, hashes, seen = zip(*reports, strict=True)
    overlap = sum(map(len, seen)) - len(set().union(*seen))
    if dist.get_rank() == 0:
        result = {
            "world_size": len(reports),
            "hosts": hosts,
            "samples_per_rank": [len(samples) for samples in seen],
            "samples_overlap": overlap,
            "parameter_sha256": hashes,
            **record,
            "accuracy": record["accuracy_per_epoch"][-1],
            "steps": trainer.engine.global_steps,
            "global_batch": trainer.sizes.train,
            "dtype": str(trainer.dtype).removeprefix("torch."),
            "checkpoint": str(checkpoint),
        }
        path = checkpoint.parent / "result.json"
        path.write_text(json.dumps(result, indent=1) + "\n")
        print(f"done in {record['seconds']:.1f} s: {path}", flush=True)
        if len(set(hashes)) > 1 or overlap:
            print(f"the ranks went apart: parameters {hashes}, {overlap} samples seen twice", file=sys.stderr)
    return len(set(hashes)) == 1 and overlap == 0


def main() -> int:
    arguments = parse_arguments()
    checkpoint = arguments.output.resolve() / "checkpoint"
    try:
        trainer, first_epoch = prepare(arguments)
    except InputError as error:
        print(f"{Path(__file__).name}: {error}", file=sys.stderr)
        return 2
    record = train(trainer, first_epoch, arguments, checkpoint)
    agreed = conclude(trainer, record, checkpoint)
    dist.destroy_process_group()
    return 0 if agreed else 1


if __name__ == "__main__":
    sys.exit(main())
