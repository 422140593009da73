#!/usr/bin/env python3
"""Writes data/tensorboard_golden.tfevents with TensorBoard's own writer and protobufs.

The wall times are fixed, so that the bytes can be compared with those of tensorboard.cc.
Needs the PyPI package tensorboard.
"""
import io
import os

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.record_writer import RecordWriter

STEPS = [
    (0, 1700000000.25, [("eval/gsm8k/accuracy", 0.5)]),
    (1, 1700000001.5, [("rollout/raw_reward", 0.1), ("train/loss", -3.25e-7)]),
    (300, 1700000300.125, [("train/grad_norm", float("inf")), ("perf/rss_bytes", 1.5e9)]),
    (2**40, 1.0, [("x" * 200, 1.0)]),
]


def main():
    out = io.BytesIO()
    writer = RecordWriter(out)
    first = Event(wall_time=1699999999.0, file_version="brain.Event:2")
    writer.write(first.SerializeToString())
    for step, wall_time, values in STEPS:
        summary = Summary(value=[Summary.Value(tag=t, simple_value=v) for t, v in values])
        event = Event(wall_time=wall_time, step=step, summary=summary)
        writer.write(event.SerializeToString(deterministic=True))
    writer.flush()
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "data", "tensorboard_golden.tfevents")
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as file:
        file.write(out.getvalue())


if __name__ == "__main__":
    main()
