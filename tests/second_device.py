"""A second device on a machine without one: a tensor on the wrong device fails a test.

If there is a GPU, the tests run on it.

`Away` is a tensor that reports `cuda`, holds its numbers in host memory, and refuses to be mixed
with tensors of the CPU as a GPU does. A dispatch mode makes such tensors whenever the device is
`cuda`, and queries about devices are patched. It shows where a tensor lies, not how a GPU computes:
kernels, streams, memory that runs out and rounding are not imitated.
"""

import concurrent.futures
import contextlib
from unittest import mock

import torch
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils._pytree import tree_iter, tree_map_only

from symgen import transforms
from symgen.split.symmetric import symmetric_basis

CUDA = torch.device("cuda", 0)
REAL = torch.cuda.is_available()
aten = torch.ops.aten
# They take a tensor of another device: copies do, and indices may lie on the CPU.
CROSS = {aten._to_copy.default, aten.copy_.default, aten._copy_from.default}
INDEXED = {aten.index.Tensor, aten.index_put_.default, aten.index_put.default,
           aten._index_put_impl_.default, aten._unsafe_index.Tensor}  # fmt: skip
# They take a single number from the CPU, as all pointwise operations do.
SCALARS = {aten.where.self, aten.masked_fill.Tensor, aten.masked_fill_.Tensor,
           aten.fill_.Tensor, aten.fill.Tensor} | INDEXED  # fmt: skip


class Away(torch.Tensor):
    """A tensor of the second device."""

    @staticmethod
    def __new__(cls, held):
        return torch.Tensor._make_wrapper_subclass(
            cls, held.shape, strides=held.stride(), storage_offset=held.storage_offset(),
            dtype=held.dtype, layout=held.layout, device=CUDA,
        )  # fmt: skip

    def __init__(self, held):
        self.held = held

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return _run(func, args, kwargs or {})

    def __repr__(self):
        return f"{self.held!r} on the second device"

    def untyped_storage(self):
        return self.held.untyped_storage()

    def tolist(self):
        return self.cpu().tolist()

    def numpy(self, *, force=False):
        if force:
            return self.cpu().numpy()
        raise TypeError(
            "can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() to copy the tensor "
            "to host memory first."
        )


def _run(func, args, kwargs):
    """Run an operation in host memory, if a GPU would take its mix of tensors."""
    if func._can_decompose():  # Inference mode passes composed operations whole.
        with _Elsewhere():
            result = func.decompose(*args, **kwargs)
        if result is not NotImplemented:
            return result
    given = [x for x in tree_iter((args, kwargs)) if isinstance(x, torch.Tensor)]
    away = [isinstance(x, Away) for x in given]
    where = kwargs.get("device")
    if any(away):
        _refuse_mixed(func, args, given, away)
    goes = torch.device(where).type == "cuda" if where is not None else any(away)
    if not any(away) and not goes:
        return func(*args, **kwargs)
    if func is aten.copy_.default and not away[0]:
        return func(*tree_map_only(Away, lambda x: x.held, args), **kwargs)
    inside, options = tree_map_only(Away, lambda x: x.held, (args, kwargs))
    if where is not None:
        options = options | {"device": "cpu"}
    if func is aten._to_copy.default and where is not None:
        options.pop("pin_memory", None)
    result = func(*inside, **options)
    if func is aten._to_copy.default:
        held = given[0].held if away[0] else given[0]
        result = result.clone() if result is held else result
    if not goes:
        return result
    view = any(x.alias_info and not x.alias_info.is_write for x in func._schema.returns)
    normal = (
        view and not given[0].is_inference()
    )  # A view is an inference tensor only if its base is one.
    with torch.inference_mode(torch.is_inference_mode_enabled() and not normal):
        result = tree_map_only(torch.Tensor, Away, result)
    return return_and_correct_aliasing(func, args, kwargs, result) if any(away) else result


def _refuse_mixed(func, args, given, away):
    if func in CROSS:
        return
    free = func in SCALARS or torch.Tag.pointwise in func.tags
    written = {i for i, x in enumerate(func._schema.arguments) if x.is_out or x.is_write}
    written = [args[i] for i in written if i < len(args)]
    for x, there in zip(given, away, strict=True):
        single = free and x.ndim == 0 and not any(x is y for y in written)
        index = func in INDEXED and x is not given[0] and isinstance(given[0], Away)
        value = func in INDEXED and len(args) > 2 and x is args[2]
        if not there and not single and not (index and not value):
            raise RuntimeError(
                "Expected all tensors to be on the same device, but found at least two devices, "
                f"cuda:0 and cpu! (in {func})"
            )


class _Elsewhere(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return _run(func, args, kwargs or {})


@contextlib.contextmanager
def _in_this_thread():
    lifted = torch._C._only_lift_cpu_tensors()
    torch._C._set_only_lift_cpu_tensors(True)
    try:
        with torch.autograd.set_multithreading_enabled(False), _Elsewhere():
            yield
    finally:
        torch._C._set_only_lift_cpu_tensors(lifted)


def _submit(original):
    """Let threads inherit the mode, which belongs to one thread."""

    def submit(pool, function, /, *args, **kwargs):
        def inside(*args, **kwargs):
            with _in_this_thread():
                return function(*args, **kwargs)

        return original(pool, inside, *args, **kwargs)

    return submit


ANSWERS = {
    "is_available": True, "device_count": 1, "current_device": 0, "_lazy_init": None,
    "is_initialized": True, "set_device": None, "synchronize": None, "empty_cache": None,
    "mem_get_info": (2**33, 2**34), "memory_reserved": 0, "memory_allocated": 0,
    "get_device_capability": (8, 0), "is_current_stream_capturing": False,
}  # fmt: skip


@contextlib.contextmanager
def second_device():
    """Put tensors on `cuda`: on the GPU if there is one, else in host memory."""
    if REAL:
        yield CUDA
        return
    torch._C._ensureCUDADeviceGuardSet()
    with contextlib.ExitStack() as stack:
        for name, answer in ANSWERS.items():
            stack.enter_context(
                mock.patch.object(torch.cuda, name, lambda *_, answer=answer, **__: answer)
            )
        pool = concurrent.futures.ThreadPoolExecutor
        stack.enter_context(mock.patch.object(pool, "submit", _submit(pool.submit)))
        # Tables that are kept for later calls belong to this device, which ends with the context.
        stack.enter_context(mock.patch.dict(transforms._FACTORS))
        stack.callback(symmetric_basis.cache_clear)
        # A network that moves gets new parameters, of the device's type.
        overwritten = torch.__future__.get_overwrite_module_params_on_conversion()
        stack.callback(torch.__future__.set_overwrite_module_params_on_conversion, overwritten)
        torch.__future__.set_overwrite_module_params_on_conversion(True)
        # Kernels for a GPU exist nowhere else.
        stack.enter_context(mock.patch.object(torch.backends.cudnn, "is_available", lambda: False))
        stack.enter_context(torch.backends.cudnn.flags(enabled=False))
        stack.enter_context(torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH))
        stack.enter_context(_in_this_thread())
        yield CUDA
