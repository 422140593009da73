#!/usr/bin/env python3
"""Prints every scalar of a folder of event files as TensorBoard itself reads them: tag step value."""
import sys

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.util import tensor_util


def main():
    accumulator = EventAccumulator(sys.argv[1], size_guidance={"scalars": 0, "tensors": 0})
    accumulator.Reload()
    tags = accumulator.Tags()
    for tag in sorted(tags["scalars"]):
        for event in accumulator.Scalars(tag):
            print(tag, event.step, float(event.value).hex())
    for tag in sorted(tags["tensors"]):
        for event in accumulator.Tensors(tag):
            print(tag, event.step, float(tensor_util.make_ndarray(event.tensor_proto)).hex())


if __name__ == "__main__":
    main()
