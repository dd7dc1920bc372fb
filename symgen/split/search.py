r"""A search for the AND and OR effects that explain outputs on some masked states.

Sets of any size are found by climbing: a variable enters or leaves a set as long as its column
explains more of a residual r. A column with c ones of m states explains

.. math:: \frac{p^2}{c\,(m - c) / m} \quad\text{with}\quad p = \sum_S a_S\,r_S

of a centred residual. All neighbors of a set cost two matrix products together. An OR is an AND of
absent variables: it is 0 in the states that lack all of its members. So both are searched alike.

A model grows in rounds. The climbs start at single variables with the residual of the model, and at
every set of the model with the residual of the other sets. So a set that is nearly right gets its
missing variables. Then least squares fits all effects, and those that are not significant leave.
"""

import dataclasses

import numpy as np

# An effect stays if it exceeds this many standard errors.
SIGNIFICANT = 3.5
# Largest numbers of rounds, and of columns, also as a share of the states.
ROUNDS, COLUMNS, SHARE = 40, 400, 1 / 3
# At least so many sets may enter in a round.
FEWEST = 10
# Rounds that go on without explaining this share of the residual.
PATIENCE, PROGRESS = 3, 0.01
# Squares of singular values below this share of the largest count as 0.
RANK = 1e-12


def _climbed(
    having: np.ndarray, members: np.ndarray, residual: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return sets that explain more of their residual than any neighbor, and how much.

    Args:
        having: for ANDs 1 if a variable is present in a state, for ORs if it is absent,
            (state, variable).
        members: sets to start from, bool (set, variable).
        residual: centred outputs, one row per set, (set, state).
    """
    states = len(having)
    members = members.copy()
    reached = np.zeros(len(members))
    moving = np.arange(len(members))
    while len(moving):
        here, rest = members[moving], residual[moving]
        missing = here @ (1 - having).T
        complete = (missing == 0).astype(float)
        almost = (missing == 1).astype(float)
        count = complete.sum(1, keepdims=True)
        price = (complete * rest).sum(1, keepdims=True)
        # A member that leaves brings the states which lack it alone.
        counts = np.where(here, count + almost @ (1 - having), complete @ having)
        prices = np.where(here, price + (almost * rest) @ (1 - having), (complete * rest) @ having)
        gains = _explained(prices, counts, states)
        gains[here & (here.sum(1, keepdims=True) == 1)] = 0
        # Equal columns: the smaller set goes first.
        gains *= np.where(here, 1 + 1e-9, 1 - 1e-9)
        reached[moving] = _explained(price, count, states)[:, 0]
        best = gains.argmax(1)
        better = gains.max(1) > reached[moving]
        moving = moving[better]
        members[moving, best[better]] ^= True
    return members, reached


def _explained(price: np.ndarray, count: np.ndarray, states: int) -> np.ndarray:
    """Return the sum of squares that a column explains of a centred residual; 0 if constant."""
    spread = count * (states - count) / states
    return np.where(spread > 0, price**2 / np.where(spread > 0, spread, 1), 0)


@dataclasses.dataclass
class Model:
    """ANDs and ORs on some states, no two with the same column.

    Attributes:
        present: 1 if a variable is present in a state, shape (state, variable).
        members: bool (set, variable).
        is_or: bool (set,).
        matrix: 1 if an AND has all members in a state, or an OR any, shape (state, set).
    """

    present: np.ndarray
    members: np.ndarray
    is_or: np.ndarray
    matrix: np.ndarray

    def __len__(self) -> int:
        return len(self.members)

    def __getitem__(self, kept: np.ndarray) -> "Model":
        return Model(self.present, self.members[kept], self.is_or[kept], self.matrix[:, kept])

    def joined(self, members: np.ndarray, is_or: np.ndarray | bool) -> "Model":
        """Return the model with further sets, as far as their columns are new and not 0.

        An OR of one variable is an AND of it.
        """
        count = self.present @ members.T
        size = members.sum(1)
        columns = np.where(is_or, count > 0, count == size).astype(float)
        model = Model(
            self.present,
            np.concatenate([self.members, members]),
            np.concatenate([self.is_or, is_or & (size > 1)]),
            np.concatenate([self.matrix, columns], 1),
        )
        bits = np.packbits(model.matrix.astype(bool), axis=0)
        kept = np.sort(np.unique(bits, axis=1, return_index=True)[1])
        return model[kept[bits[:, kept].any(0)]]

    def fitted(self, w: np.ndarray, least: float) -> "tuple[Model, np.ndarray, float]":
        """Return the part that is significant, its effects by least squares, and the variance.

        Args:
            w: outputs minus v[0], shape (state,).
            least: smallest variance of the residual that counts.
        """
        model = self
        while True:
            gram = model.matrix.T @ model.matrix
            inverse = np.linalg.pinv(gram, rcond=RANK, hermitian=True)
            x = inverse @ (model.matrix.T @ w)
            rest = w - model.matrix @ x
            variance = max(float(rest @ rest) / max(len(w) - len(model), 1), least)
            size = abs(x) / np.sqrt(variance * inverse.diagonal())
            weakest = size.argsort()[: 1 + len(model) // 5]
            weak = weakest[size[weakest] < SIGNIFICANT]
            if not len(weak):
                return model, x, variance
            model = model[np.setdiff1d(np.arange(len(model)), weak)]

    def neighbors(self, x: np.ndarray, rest: np.ndarray, least: float) -> "Model":
        """Return the model with the sets that climbs find.

        Args:
            x: effects of the model.
            rest: the residual of the outputs.
            least: sum of squares that a new set explains at least.
        """
        singles = np.eye(self.members.shape[1], dtype=bool)
        model = self.joined(np.ones_like(singles[:1]), True)
        for is_or, having in ((False, self.present), (True, 1 - self.present)):
            own = self.is_or == is_or
            partial = rest + x[own, None] * self.matrix[:, own].T
            residual = np.concatenate([np.tile(rest, (len(singles), 1)), partial])
            residual -= residual.mean(1, keepdims=True)
            starts = np.concatenate([singles, self.members[own]])
            found, gain = _climbed(having, starts, residual)
            strongest = (-gain).argsort()[: max(FEWEST, len(self))]
            model = model.joined(found[strongest[gain[strongest] > least]], is_or)
        return model


def grown(
    present: np.ndarray, w: np.ndarray, eps: float, floor: float
) -> tuple[Model, np.ndarray, float]:
    """Return the model that explains w, its effects, and the variance of its residual.

    Args:
        present: 1 if a variable is present in a state, (state, variable).
        w: outputs minus v[0], shape (state,).
        eps: a residual up to this size needs no explanation.
        floor: smallest variance of the residual that counts.
    """
    n = present.shape[1]
    none = Model(present.astype(float), np.ones((0, n), bool), np.ones(0, bool), present[:, :0])
    # The OR of all variables is the constant.
    model = none.joined(np.ones((1, n), bool), True).joined(np.eye(n, dtype=bool), False)
    best = model, np.zeros(len(model)), np.inf
    idle = 0
    for _ in range(ROUNDS):
        model, x, variance = model.fitted(w, floor)
        rest = w - model.matrix @ x
        idle += 1
        if variance < (1 - PROGRESS) * best[2]:
            best = model, x, variance
            idle = 0
        if abs(rest).max() <= eps or idle == PATIENCE or len(model) > min(COLUMNS, SHARE * len(w)):
            break
        model = model.neighbors(x, rest, SIGNIFICANT**2 * variance)
    return best
