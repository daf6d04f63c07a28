"""A job as the script sees it: an iterator over blocks, each of which is computed and done."""

from __future__ import annotations

import math
from types import TracebackType
from typing import Any, Dict, Iterator, Optional, Tuple, Type

import numpy

from .border import NO_CLASSES, AttachError, Border, Compute, JobEnded
from .memory import Memory
from .pixels import Pixels, targets
from .seeds import seed_all
from .start import Settings


class Block:
    """The samples that are computed next.  A Block is valid until done().

    training: gradients are wanted, else an evaluation.  step: of the job, from 0; 0 in an evaluation.
    number: of the block in its step.  count: samples, n below.  seed: 64 bits, of this block; random,
    numpy and torch are seeded by it.
    """

    def __init__(self, job: Job, compute: Compute) -> None:
        self._job = job
        self._compute = compute
        self.training = compute.training
        self.step = compute.step
        self.number = compute.block
        self.count = compute.samples
        self.seed = compute.seed

    @property
    def raw(self) -> Any:
        """The samples as the shards have them: numpy, of the type settings.element, [n, C, H, W], of a text [n, 1, 1, context + 1]; a view of the
        shared memory."""
        job = self._open("raw")
        if job.settings.C == 0:
            raise AttachError("the job has no samples, as its script has its own data: take block.indices")
        return job._memory.images[: self.count]

    @property
    def samples(self) -> Tuple[Any, Any]:
        """x and y, new arrays.  torch tensors where the net is a torch.nn.Module, else numpy arrays.

        x: float32 [n, C, H, W] as gradcast's own nets see it, (bytes / 255 - mean) / std by channel, values (x - mean) / std.  y: the labels, int64 [n],
        or the targets of a regression: float32 [n, targets], and [n] where target_scale is above 0.
        Of masks y is int64 [n, H, W]: a class for each pixel, or settings.ignore.
        Of a text x and y are tokens, int64 [n, context]; each of y is the one behind that of x.
        """
        x, job = self.raw, self._job
        found = job.settings
        if found.vocabulary:
            tokens = x.reshape(self.count, -1).astype(numpy.int64)
            return job._net.samples(numpy.ascontiguousarray(tokens[:, :-1]), numpy.ascontiguousarray(tokens[:, 1:]))
        if found.masks:
            y = job._memory.targets[: self.count].reshape(self.count, found.H, found.W).astype(numpy.int64)
        elif found.targets:
            y = job._memory.targets[: self.count].copy()
        elif found.target_scale > 0:
            y = targets(self._labels(), found.classes, found.target_scale)
        else:
            y = self._labels().astype(numpy.int64)
        return job._net.samples(job._pixels.floats(x), y)

    @property
    def indices(self) -> Any:
        """Places of the samples in the data set, int64 [n]; a torch tensor or a numpy array as samples.  Of an evaluation: in the test set."""
        return self._job._net.own_indices(self._open("indices")._memory.indices[: self.count].astype(numpy.int64))

    def done(
        self, loss: Any, out: Any = None, *, predicted: Any = None, gradients: Optional[Dict[str, Any]] = None, labels: Any = None
    ) -> None:
        """Hands the block in.  Of a training block this runs the backward pass.

        loss: a float, or a torch tensor of one element: the sum over samples of each sample's loss (of a text or
        masks the mean over its positions).
        out: the net's outputs, [n, classes]: the largest of a row is the class.  predicted: the classes themselves, integers [n].  An evaluation without
        both has a loss and no accuracy.
        gradients: of a training block of a net without torch, {name: array}, summed over the samples.
        labels: integers [n], of a script with its own data, to compare the classes with.
        AttachError: one of them is not what it should be; the job ends.
        """
        job, compute = self._open("done"), self._compute
        value = job._net.loss(loss, compute)
        if not math.isfinite(value):
            raise AttachError(f"the loss of step {self.step + 1}, block {self.number} is {value}")
        if compute.training:
            job._net.check_gradients(gradients)
        classes = None if predicted is None and out is None else self._classes(out, predicted)
        right = NO_CLASSES
        if not compute.training and classes is not None:
            wanted = self._labels() if labels is None and job.settings.labelled else labels
            if wanted is not None:
                right = int(numpy.count_nonzero(classes == numpy.asarray(wanted).reshape(-1)))
        try:
            job._border.loss(value, right)
            if compute.training:
                job._net.backward(loss, gradients)
            else:
                job._memory.predicted[: self.count] = -1 if classes is None else classes
            job._border.done()
        except JobEnded:   # the job was cancelled, say: the loop ends with the next block
            pass
        job._block = None

    def _open(self, what: str) -> Job:
        if self._job._block is not self:
            raise AttachError(f"block.{what}: the block is done; the loop's next one has what follows")
        return self._job

    def _labels(self) -> Any:
        return self._job._memory.labels[: self.count]

    def _classes(self, out: Any, predicted: Any) -> Any:
        """The class of each sample, int32 [n]; None: the outputs are no classes."""
        if predicted is not None:
            classes = self._job._net.outputs(predicted)
            if classes.shape != (self.count,) or classes.dtype.kind not in "iu":
                raise AttachError(f"predicted is {classes.dtype} of shape {list(classes.shape)}; integers of shape [{self.count}] are wanted")
            return classes.astype(numpy.int32)
        shape = numpy.shape(out)
        found = self._job.settings
        if (found.C and not found.labelled) or len(shape) != 2:
            return None
        if shape[0] != self.count:
            raise AttachError(f"out has shape {list(shape)}; it has one row for each of the block's {self.count} samples")
        if self.training:   # nobody asks for them
            return None
        return self._job._net.outputs(out).argmax(1).astype(numpy.int32)


class Job:
    """A job of gradcast whose net this process computes.  An iterator over Blocks, and a context.

    settings: what the job says of itself.  As a context it ends the job with the exception that leaves it, and with an error where the
    script leaves it before the job has ended.
    """

    def __init__(self, border: Border, settings: Settings, net: Any, memory: Optional[Memory]) -> None:
        """memory: None if the job has ended already; then it has no blocks."""
        self.settings = settings
        self._border = border
        self._net = net
        if memory is not None:
            self._memory = memory
        self._ended = memory is None
        self._pixels = Pixels(settings.mean, settings.std)
        self._block: Optional[Block] = None

    @property
    def parameters(self) -> Dict[str, Any]:
        """The parameters by name, read-only views of the shared memory.  The values change between blocks."""
        return self._net.parameters

    def __iter__(self) -> Iterator[Block]:
        return self

    def __next__(self) -> Block:
        if self._block is not None:
            raise AttachError(f"the block of step {self._block.step + 1} is not done: each block ends with block.done(loss, out)")
        try:
            if self._ended:
                raise JobEnded
            compute = self._border.compute()
        except JobEnded:
            self._finish()
            raise StopIteration from None
        if compute.samples == 0 or compute.samples > self._memory.block:
            raise AttachError(f"COMPUTE of gradcastd has {compute.samples} samples; 1 to {self._memory.block} are possible")
        seed_all(compute.seed)
        self._net.begin(compute)
        self._block = Block(self, compute)
        return self._block

    def __enter__(self) -> Job:
        return self

    def __exit__(self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]) -> None:
        if error is not None:
            self._border.fail(line_of(error))
        elif not self._ended and not self._border.ended:
            early = AttachError("the script has ended before the job: the loop over its blocks ends when the job does")
            self._border.fail(line_of(early))
            raise early
        self._finish()

    def _finish(self) -> None:
        if not self._ended:
            self._ended = True
            self._net.end()


def line_of(error: BaseException) -> str:
    """An exception as one line: its type, and what it says."""
    return f"{type(error).__name__}: {error}"
