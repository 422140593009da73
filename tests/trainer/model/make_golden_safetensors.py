"""Makes data/golden.safetensors with the Python library: one tensor of every dtype that it can
write here, a scalar and an empty tensor. safetensors_test.cc expects value i in element i.

    python make_golden_safetensors.py      (needs safetensors, torch)
"""

import pathlib

import torch
from safetensors.torch import save_file

DTYPES = {
    "f64": torch.float64, "f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16,
    "f8_e4m3": torch.float8_e4m3fn, "f8_e5m2": torch.float8_e5m2, "i64": torch.int64,
    "i32": torch.int32, "i16": torch.int16, "i8": torch.int8, "u8": torch.uint8,
}
tensors = {name: torch.arange(6, dtype=torch.float32).reshape(2, 3).to(dtype)
           for name, dtype in DTYPES.items()}
tensors["bool"] = torch.tensor([True, False, True])
tensors["scalar"] = torch.tensor(7.0)
tensors["empty"] = torch.zeros(0, 4)
folder = pathlib.Path(__file__).parent / "data"
folder.mkdir(exist_ok=True)
save_file(tensors, folder / "golden.safetensors", metadata={"format": "pt", "note": "größer"})
