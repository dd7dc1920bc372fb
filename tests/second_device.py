"""A second device on a machine without one: a mistake of devices is a red test, no crash elsewhere.

Where there is a GPU, the tests run on that.

`Away` is a tensor that says `cuda`, holds its numbers in host memory, and refuses to be mixed with
tensors of the CPU as a GPU does. A dispatch mode sends there what is made on, or moved to, `cuda`,
and the queries about devices are patched. It shows where a tensor lies, not how a GPU computes:
kernels, streams, memory that runs out and rounding are not imitated.
"""

import concurrent.futures
import contextlib
from unittest import mock

import torch
from accelerate.state import AcceleratorState
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils._pytree import tree_iter, tree_map_only

from symgen import transforms
from symgen.split.symmetric import symmetric_basis

CUDA = torch.device("cuda", 0)
REAL = torch.cuda.is_available()
aten = torch.ops.aten
# They take a tensor from another device: copies do, and tensors are indexed by indices of the CPU.
CROSS = {aten._to_copy.default, aten.copy_.default, aten._copy_from.default}
INDEXED = {aten.index.Tensor, aten.index_put_.default, aten.index_put.default,
           aten._index_put_impl_.default, aten._unsafe_index.Tensor}  # fmt: skip
# They take a single number from the CPU, as everything that works number by number does.
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
    """Run an operation on host memory, where its tensors may be mixed as a GPU would mix them."""
    if func._can_decompose():  # in inference mode, what is made of other operations comes whole
        with _Elsewhere():
            found = func.decompose(*args, **kwargs)
        if found is not NotImplemented:
            return found
    given = [x for x in tree_iter((args, kwargs)) if isinstance(x, torch.Tensor)]
    away = [isinstance(x, Away) for x in given]
    wanted = kwargs.get("device")
    if func is aten._pin_memory.default:  # memory that a GPU reads by itself: here all of it
        return given[0].clone()
    if func is aten.is_pinned.default:
        return False
    if any(away):
        _refuse_mixed(func, args, given, away)
    goes = torch.device(wanted).type == "cuda" if wanted is not None else any(away)
    if not any(away) and not goes:
        return func(*args, **kwargs)
    if func is aten.copy_.default and not away[0]:
        return func(*tree_map_only(Away, lambda x: x.held, args), **kwargs)
    inside, options = tree_map_only(Away, lambda x: x.held, (args, kwargs))
    if wanted is not None:
        options = options | {"device": "cpu"}
    if func is aten._to_copy.default and wanted is not None:
        options.pop("pin_memory", None)
    found = func(*inside, **options)
    if func is aten._to_copy.default:
        held = given[0].held if away[0] else given[0]
        found = found.clone() if found is held else found
    if not goes:
        return found
    view = any(x.alias_info and not x.alias_info.is_write for x in func._schema.returns)
    normal = view and not given[0].is_inference()  # a view of a tensor is no more of one than it
    with torch.inference_mode(torch.is_inference_mode_enabled() and not normal):
        found = tree_map_only(torch.Tensor, Away, found)
    return return_and_correct_aliasing(func, args, kwargs, found) if any(away) else found


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
    """Modes belong to a thread: threads that are begun within one have it as well."""

    def submit(pool, function, /, *args, **kwargs):
        def inside(*args, **kwargs):
            with _in_this_thread():
                return function(*args, **kwargs)

        return original(pool, inside, *args, **kwargs)

    return submit


def _zero_gradients(loss, *_, **__):
    """Give every parameter that a loss depends on a gradient of zeros, on its device.

    The real engine asks the driver as soon as a node lies on `cuda`.
    """
    pending, seen = [loss.grad_fn], set()
    while pending:
        node = pending.pop()
        if node is not None and node not in seen:
            seen.add(node)
            pending += [before for before, _ in node.next_functions]
            if hasattr(node, "variable"):
                node.variable.grad = torch.zeros_like(node.variable)


PROPERTIES = mock.Mock(total_memory=2**34, multi_processor_count=1, major=8, minor=0)
PROPERTIES.name = "a second device"
ANSWERS = {
    "is_available": True, "device_count": 1, "current_device": 0, "_lazy_init": None,
    "is_initialized": True, "set_device": None, "synchronize": None, "empty_cache": None,
    "mem_get_info": (2**33, 2**34), "memory_reserved": 0, "memory_allocated": 0,
    "max_memory_allocated": 0, "get_device_name": "a second device",
    "get_device_properties": PROPERTIES, "get_device_capability": (8, 0),
    "is_current_stream_capturing": False, "is_bf16_supported": True,
    "manual_seed": None, "manual_seed_all": None, "set_rng_state": None,
}  # fmt: skip


@contextlib.contextmanager
def second_device():
    """Have tensors on `cuda`: of the GPU where there is one, else held in host memory."""
    if REAL:
        AcceleratorState._reset_state(reset_partial_state=True)
        yield CUDA
        return
    torch._C._ensureCUDADeviceGuardSet()
    with contextlib.ExitStack() as stack:
        for name, answer in ANSWERS.items():
            stack.enter_context(
                mock.patch.object(torch.cuda, name, lambda *_, answer=answer, **__: answer)
            )
        state = torch.zeros(16, dtype=torch.uint8)
        stack.enter_context(mock.patch.object(torch.cuda, "get_rng_state", lambda *_: state))
        pool = concurrent.futures.ThreadPoolExecutor
        stack.enter_context(mock.patch.object(pool, "submit", _submit(pool.submit)))
        # Tables that are kept for the next call are of this device, which then is gone.
        stack.enter_context(mock.patch.dict(transforms._FACTORS))
        stack.callback(symmetric_basis.cache_clear)
        # A network that is moved gets new parameters, of the type that the device has.
        overwritten = torch.__future__.get_overwrite_module_params_on_conversion()
        stack.callback(torch.__future__.set_overwrite_module_params_on_conversion, overwritten)
        torch.__future__.set_overwrite_module_params_on_conversion(True)
        # The kernels that are chosen on a GPU exist nowhere else.
        stack.enter_context(mock.patch.object(torch.backends.cudnn, "is_available", lambda: False))
        stack.enter_context(torch.backends.cudnn.flags(enabled=False))
        stack.enter_context(torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH))
        stack.enter_context(mock.patch.object(torch.Tensor, "backward", _zero_gradients))
        AcceleratorState._reset_state(reset_partial_state=True)
        stack.callback(AcceleratorState._reset_state, reset_partial_state=True)
        stack.enter_context(_in_this_thread())
        # What trainings ask of a GPU.
        before = torch.are_deterministic_algorithms_enabled()
        stack.callback(torch.use_deterministic_algorithms, before)
        memory, name = torch.utils.deterministic, "fill_uninitialized_memory"
        stack.callback(setattr, memory, name, getattr(memory, name))
        stack.enter_context(mock.patch.dict("os.environ"))
        yield CUDA
