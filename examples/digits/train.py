"""Trains a small neural network to read handwritten digits, as an example of a job of Fairlot.

The data are 1797 digits of 8×8 pixels (UCI's handwritten digits, as scikit-learn ships them); every fifth digit is
kept for testing. Training is mini-batch gradient descent with momentum. The program shows everything that a job
should do: it prints its progress, saves a checkpoint regularly and on SIGTERM, and resumes exactly where the
checkpoint ends. With several workers, each worker computes the gradient of a part of every batch; rank 0 adds up the
gradients and alone saves the checkpoint.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import select
import signal
import socket
import struct
import sys
import time
from dataclasses import dataclass
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # more threads do not speed up matrices this small

import numpy as np

PIXELS, HIDDEN, DIGITS = 64, 64, 10
SHAPES = [(PIXELS, HIDDEN), (HIDDEN,), (HIDDEN, DIGITS), (DIGITS,)]
SIZE = sum(int(np.prod(shape)) for shape in SHAPES)
SEED = 20
# The learning rate at step s is LEARNING_RATE / (1 + s / HALF_LIFE).
LEARNING_RATE, HALF_LIFE, MOMENTUM = 0.5, 50, 0.9
HELLO = struct.Struct("<6sq")  # a worker's first message: the word "digits" and the worker's rank
STEP = struct.Struct("<q")  # rank 0's message before each step: the number of the step, or GOODBYE
GOODBYE = -1
CONNECT_SECONDS = 60.0
Array = np.ndarray


class PeerLost(Exception):
    """The connection to another worker of the gang broke or could not be made."""


# --- stopping ---------------------------------------------------------------------------------- SIGTERM interrupts
# nothing. Its handler leaves a byte in a pipe, and the program reads the pipe where it can stop safely. (sigtimedwait
# does not work: Python takes any wake-up after a suspension for the signal.)

_asked, _ask = os.pipe()


def handle_sigterm() -> None:
    """Makes SIGTERM write a byte to the pipe that `stop_requested` reads, instead of ending the process."""
    os.set_blocking(_ask, False)
    signal.set_wakeup_fd(_ask, warn_on_full_buffer=False)
    signal.signal(signal.SIGTERM, lambda *_: None)


def stop_requested(within: float = 0.0) -> bool:
    """Waits up to `within` seconds for SIGTERM. Returns whether SIGTERM has arrived, now or earlier."""
    return bool(select.select([_asked], [], [], max(0.0, within))[0])


# --- data and model ----------------------------------------------------------------------------


def read_digits() -> tuple[Array, Array, Array, Array]:
    """Returns (training pixels, training labels, test pixels, test labels).

    Reads the data file of scikit-learn without importing scikit-learn. Exits if scikit-learn is not installed.
    """
    spec = importlib.util.find_spec("sklearn")
    if spec is None or not spec.submodule_search_locations:
        sys.exit("the digits come with scikit-learn, which this environment lacks")
    file = Path(spec.submodule_search_locations[0], "datasets", "data", "digits.csv.gz")
    table = np.loadtxt(file, delimiter=",")
    table = table[np.random.default_rng(SEED).permutation(len(table))]
    pixels, labels = table[:, :PIXELS] / 16.0, table[:, PIXELS].astype(int)
    test = np.arange(len(table)) % 5 == 0
    return pixels[~test], labels[~test], pixels[test], labels[test]


def unpack(parameters: Array) -> list[Array]:
    """Returns the weights and biases of both layers, as views of the flat array `parameters`."""
    ends = np.cumsum([int(np.prod(shape)) for shape in SHAPES])
    return [part.reshape(shape) for part, shape in zip(np.split(parameters, ends[:-1]), SHAPES, strict=True)]


def first_parameters() -> Array:
    chance = np.random.default_rng([SEED, 1])
    parts = [chance.normal(0, np.sqrt(2 / s[0]), s) if len(s) == 2 else np.zeros(s) for s in SHAPES]
    return np.concatenate([part.ravel() for part in parts])


def scores(parameters: Array, pixels: Array) -> tuple[Array, Array]:
    """Returns the activations of the hidden layer and the logarithms of the digits' probabilities, a row for each
    image."""
    into, into_bias, out, out_bias = unpack(parameters)
    hidden = np.maximum(pixels @ into + into_bias, 0)
    raw = hidden @ out + out_bias
    raw -= raw.max(axis=1, keepdims=True)
    return hidden, raw - np.log(np.exp(raw).sum(axis=1, keepdims=True))


def gradient(parameters: Array, pixels: Array, labels: Array) -> Array:
    """Returns an array of SIZE + 1 numbers: the gradient of the examples' summed loss, then the summed loss."""
    hidden, logarithms = scores(parameters, pixels)
    rows = np.arange(len(labels))
    loss = -logarithms[rows, labels].sum()
    off = np.exp(logarithms)
    off[rows, labels] -= 1
    back = (off @ unpack(parameters)[2].T) * (hidden > 0)
    parts = [pixels.T @ back, back.sum(axis=0), hidden.T @ off, off.sum(axis=0)]
    return np.concatenate([*(part.ravel() for part in parts), [loss]])


def accuracy(parameters: Array, pixels: Array, labels: Array) -> float:
    return float((scores(parameters, pixels)[1].argmax(axis=1) == labels).mean())


@dataclass
class Share:
    """The part of each batch that this worker computes, and the data to compute it from."""

    rank: int
    workers: int
    batch: int
    step_seconds: float
    pixels: Array
    labels: Array

    def work(self, parameters: Array, step: int) -> Array:
        """Returns what `gradient` returns for this worker's part of the batch of `step`.

        Returns after `step_seconds`, the simulated time of the step on the worker's GPU, or on SIGTERM.
        """
        begun = time.monotonic()
        # The batch depends on the step alone, so a resumed run trains on the same batches as an uninterrupted run.
        chosen = np.random.default_rng([SEED, 2, step]).choice(len(self.labels), self.batch, replace=False)
        mine = np.array_split(chosen, self.workers)[self.rank]
        result = gradient(parameters, self.pixels[mine], self.labels[mine])
        stop_requested(within=self.step_seconds - (time.monotonic() - begun))
        return result


# --- the gang ----------------------------------------------------------------------------------


def receive(peer: socket.socket, size: int) -> bytes:
    data = bytearray()
    try:
        while len(data) < size:
            piece = peer.recv(size - len(data))
            if not piece:
                raise PeerLost
            data += piece
    except ConnectionError:
        raise PeerLost from None
    return bytes(data)


def send(peer: socket.socket, data: bytes) -> None:
    try:
        peer.sendall(data)
    except ConnectionError:
        raise PeerLost from None


def accept_workers(address: tuple[str, int], workers: int) -> list[socket.socket]:
    """Waits on rank 0 until all other workers have connected; returns their connections in order of rank.

    Exits on SIGTERM. Raises PeerLost after CONNECT_SECONDS.
    """
    peers: dict[int, socket.socket] = {}
    deadline = time.monotonic() + CONNECT_SECONDS
    with socket.create_server(address) as server:
        server.settimeout(0.1)
        while len(peers) < workers - 1:
            if stop_requested():
                sys.exit(0)
            if time.monotonic() > deadline:
                raise PeerLost
            try:
                peer, _ = server.accept()
            except TimeoutError:
                continue
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            peer.settimeout(CONNECT_SECONDS)
            word, rank = HELLO.unpack(receive(peer, HELLO.size))
            if word != b"digits" or not 0 < rank < workers or rank in peers:
                peer.close()
                continue
            peer.settimeout(None)
            peers[rank] = peer
    return [peers[rank] for rank in sorted(peers)]


def connect_to_rank_0(address: tuple[str, int], rank: int) -> socket.socket:
    deadline = time.monotonic() + CONNECT_SECONDS
    while not stop_requested(within=0.05):
        try:
            peer = socket.create_connection(address)
        # rank 0 does not listen yet, or its DNS name does not resolve yet
        except (ConnectionRefusedError, socket.gaierror):
            if time.monotonic() > deadline:
                raise PeerLost from None
            continue
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        send(peer, HELLO.pack(b"digits", rank))
        return peer
    sys.exit(0)


def assist_rank_0(share: Share, address: tuple[str, int]) -> None:
    """Does the work of a worker that is not rank 0: receives parameters from rank 0 and sends back gradients, until
    rank 0 sends GOODBYE. Raises PeerLost when the connection breaks."""
    with connect_to_rank_0(address, share.rank) as peer:
        while True:
            (step,) = STEP.unpack(receive(peer, STEP.size))
            if step == GOODBYE:
                return
            parameters = np.frombuffer(receive(peer, 8 * SIZE))
            send(peer, share.work(parameters, step).tobytes())
            print(f"worker {share.rank} did its part of step {step + 1}", flush=True)


# --- training ----------------------------------------------------------------------------------


@dataclass
class State:
    """The contents of a checkpoint: everything that a run needs to continue as if it had never been interrupted."""

    parameters: Array
    velocity: Array
    step: int

    @classmethod
    def load(cls, file: Path) -> State:
        if not file.exists():
            return cls(first_parameters(), np.zeros(SIZE), 0)
        with np.load(file) as saved:
            print(f"resuming from the checkpoint of step {int(saved['step'])}", flush=True)
            return cls(saved["parameters"], saved["velocity"], int(saved["step"]))

    def save(self, file: Path) -> None:
        """Replaces the checkpoint atomically, so that a crash leaves either the old or the new checkpoint."""
        file.parent.mkdir(parents=True, exist_ok=True)
        fresh = file.with_suffix(".new")
        with fresh.open("wb") as out:
            np.savez(out, parameters=self.parameters, velocity=self.velocity, step=self.step)
            out.flush()
            os.fsync(out.fileno())
        fresh.replace(file)

    def advance(self, summed: Array, batch: int) -> None:
        rate = LEARNING_RATE / (1 + self.step / HALF_LIFE)
        self.velocity = MOMENTUM * self.velocity - rate * summed[:SIZE] / batch
        self.parameters = self.parameters + self.velocity
        self.step += 1


def train(
    options: argparse.Namespace, share: Share, test: tuple[Array, Array], peers: list[socket.socket]
) -> int:
    """Does the work of rank 0: trains, prints the progress and saves checkpoints. Returns the exit status."""
    file = Path(os.environ.get("FAIRLOT_CHECKPOINT_DIR", "checkpoint"), "digits.npz")
    state = State.load(file)
    try:
        while state.step < options.steps and not stop_requested():
            for peer in peers:
                send(peer, STEP.pack(state.step) + state.parameters.tobytes())
            summed = share.work(state.parameters, state.step)
            for peer in peers:
                summed = summed + np.frombuffer(receive(peer, 8 * (SIZE + 1)))
            state.advance(summed, options.batch)
            right = accuracy(state.parameters, *test)
            print(f"step {state.step} loss={summed[-1] / options.batch:.4f} accuracy={right:.4f}", flush=True)
            if state.step % options.checkpoint_every == 0:
                state.save(file)
    except PeerLost:
        state.save(file)
        if stop_requested():
            return 0
        print(f"a worker went away; saved step {state.step}", flush=True)
        return 1
    state.save(file)
    for peer in peers:
        send(peer, STEP.pack(GOODBYE))
    if state.step < options.steps:
        print(f"stopping as ordered; saved step {state.step}", flush=True)
        return 0
    right = accuracy(state.parameters, *test)
    print(f"final accuracy {right:.4f}", flush=True)
    if right < options.target_accuracy:
        print(f"missed the target of {options.target_accuracy}", flush=True)
        return 1
    return 0


def main() -> int:
    handle_sigterm()
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--seconds-per-step", type=float, default=0.1, help="on a GPU of speed 1")
    parser.add_argument(
        "--sensitivity", type=float, default=1.0, help="a GPU of speed s makes a step s**sensitivity faster"
    )
    parser.add_argument("--target-accuracy", type=float, default=0.95, help="exit with 1 if missed")
    parser.add_argument("--checkpoint-every", type=int, default=50, metavar="STEPS")
    options = parser.parse_args()
    rank, workers = int(os.environ.get("FAIRLOT_RANK", "0")), int(os.environ.get("FAIRLOT_WORLD_SIZE", "1"))
    speed = float(os.environ.get("FAIRLOT_GPU_SPEED", "1"))
    address = (os.environ.get("MASTER_ADDR", "127.0.0.1"), int(os.environ.get("MASTER_PORT", "29500")))
    pixels, labels, *test = read_digits()
    step_seconds = options.seconds_per_step / speed**options.sensitivity
    share = Share(rank, workers, options.batch, step_seconds, pixels, labels)
    try:
        if rank > 0:
            assist_rank_0(share, address)
            return 0
        peers = accept_workers(address, workers) if workers > 1 else []
        return train(options, share, (test[0], test[1]), peers)
    except PeerLost:
        if stop_requested():
            return 0
        print("the other workers of the gang went away", file=sys.stderr, flush=True)
        return 1


if __name__ == "__main__":
    sys.exit(main())
