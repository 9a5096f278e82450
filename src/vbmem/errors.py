"""Every error of this library, under one base. A message says what was wrong, what was expected and what to do."""


class VbmemError(Exception):
    """Something went wrong that a user can mend."""


class NumericalError(VbmemError, ArithmeticError):
    """A computation left the range of its floating-point type."""


class NonFiniteError(NumericalError, ValueError):
    """What went into a computation, codes or a matrix, or what came out of it holds NaN or infinity."""


class NotPositiveDefiniteError(NumericalError):
    """A matrix that must be positive definite is not, even after jitter."""


class DataError(VbmemError, ValueError):
    """Pictures, a data set or a file of them that cannot be used."""


class MemoryFileError(VbmemError, ValueError):
    """A file that is not a memory this version can read."""


class UncheckedFileWarning(UserWarning):
    """A file of an earlier version, which carries no checksum: damage to it cannot be noticed."""


class ModelError(VbmemError, ValueError):
    """Something that is not a model this version can build or load."""


class CheckpointError(VbmemError, ValueError):
    """A checkpoint that is missing, damaged, or of another run."""


class TrainingError(VbmemError, RuntimeError):
    """Training cannot go on."""


class GroupError(VbmemError, RuntimeError):
    """Another process that this one works together with failed or was lost."""
