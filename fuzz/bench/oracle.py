"""The right answer of a case, in float64 on its device, and how far a result is from it.

Letters: S sequences, R query rows of a sequence that are checked, T query tokens, N tokens of a context, H query heads,
G KV heads, D head size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from fuzz.bench.cases import Case
from fuzz.bench.inputs import Inputs, sampled_rows, slots_of


@dataclass(frozen=True)
class Answer:
    """`tokens` [S * R]: rows of the output that are checked; `values` float64 [S * R, H, D]: what they should hold."""

    tokens: torch.Tensor
    values: torch.Tensor

    def _errors(self, out: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Squared norms [S * R, H] of the error and of the answer."""
        error = out[self.tokens].double() - self.values
        return error.square().sum(-1), self.values.square().sum(-1)

    def relative_error(self, out: torch.Tensor) -> float:
        """Norm of the error over the norm of the answer; NaN if a checked row of `out` [T, H, D] has one."""
        error, norm = self._errors(out)
        return float((error.sum() / norm.sum()).sqrt())

    def worst_row(self, out: torch.Tensor) -> tuple[float, int, int]:
        """(relative error, query token, head) of the checked row that is farthest off; infinite where it is not finite."""
        error, norm = self._errors(out)
        relative = (error / norm.clamp_min(torch.finfo(torch.float64).tiny)).sqrt().nan_to_num(nan=torch.inf)
        row, head = divmod(int(relative.argmax()), relative.shape[1])
        return float(relative[row, head]), int(self.tokens[row]), head


def spread(case: Case, most: int) -> list[int]:
    """At most that many sequences, the first and the last among them."""
    return sorted({index * (case.batch - 1) // max(1, most - 1) for index in range(min(most, case.batch))})


def answer(case: Case, inputs: Inputs, sequences: Sequence[int] | None = None) -> Answer:
    """Dense attention of these sequences (None: of all), at most 64 query rows of each."""
    rows = torch.tensor(sampled_rows(case), device=inputs.q.device)
    picked = range(case.batch) if sequences is None else sequences
    tokens = torch.cat([seq * case.query + rows for seq in picked])
    values = torch.cat([_sequence(case, inputs, seq, rows) for seq in picked])
    return Answer(tokens, values)


def _sequence(case: Case, inputs: Inputs, seq: int, rows_R: torch.Tensor) -> torch.Tensor:
    """float64 [R, H, D]; one KV head after the other, to keep long contexts small."""
    ratio, length = case.num_heads // case.num_kv_heads, int(inputs.lens[seq])
    block, place = slots_of(inputs, case.page, seq)
    own_R = length - case.query + rows_R
    hidden_RN = torch.arange(length, device=rows_R.device)[None, :] > own_R[:, None]
    outs = []
    for kv_head in range(case.num_kv_heads):
        k_ND = inputs.k_cache[block, place, kv_head].double()
        v_ND = inputs.v_cache[block, place, kv_head].double()
        heads = slice(kv_head * ratio, (kv_head + 1) * ratio)
        q_RHD = inputs.q[seq * case.query + rows_R, heads].double()
        scores_RHN = torch.einsum("rhd,nd->rhn", q_RHD, k_ND) * inputs.scale
        scores_RHN.masked_fill_(hidden_RN[:, None], float("-inf"))
        outs.append(torch.einsum("rhn,nd->rhd", torch.softmax(scores_RHN, -1), v_ND))
    return torch.cat(outs, 1)
