"""The referee of attention targets, in the form that campaigns, `repro` and the minimiser know: one case a step."""

from collections import Counter
from dataclasses import dataclass, field

import torch

from properties.attention.cases import AttentionCase, AttentionSetting, Done
from properties.attention.judges import judge, why_unfit
from properties.attention.target import AttentionTarget
from properties.contract import Breach, UsageError
from properties.timelimit import TimedOut


@dataclass
class AttentionState:
    """What a trace has come to: as `properties.levels.LevelState`."""

    breaches: list[Breach] = field(default_factory=list)
    judged: Counter[str] = field(default_factory=Counter)
    marks: Counter[str] = field(default_factory=Counter)
    step: int = 0


class AttentionReferee:
    """Judges case after case on one target."""

    def __init__(self, target: AttentionTarget, setting: AttentionSetting) -> None:
        if setting.device not in target.capabilities.devices:
            raise UsageError(f"{target.name} runs on {', '.join(target.capabilities.devices)}, not on {setting.device}")
        self.target, self.setting, self.state = target, setting, AttentionState()
        self._num_threads = torch.get_num_threads()
        torch.set_num_threads(1)  # tensors this small are slower on several, and many times so on a busy machine

    def apply(self, operation: AttentionCase | Done) -> str:
        """Judge one case: "done"; "illegal" for one that the target does not accept; "crashed" after CRASH-1."""
        self.state.step += 1
        if isinstance(operation, Done):
            return "done"
        if why_unfit(self.target, operation) is not None:
            return "illegal"
        try:
            verdict = judge(self.target, operation, self.setting.device)
        except TimedOut:
            self.state.breaches.append(
                Breach("CRASH-2", f"still running at the time limit: {operation}", self.state.step)
            )
            return "crashed"
        self.state.judged.update(verdict.judged)
        self.state.marks.update(verdict.counts)
        self.state.judged["CRASH-2"] += 1
        known = {breach.property for breach in self.state.breaches}
        for finding in verdict.findings:
            if finding.property not in known:
                self.state.breaches.append(Breach(finding.property, finding.message, self.state.step))
        return "done"

    def close(self) -> None:
        """Torch has as many threads as before."""
        torch.set_num_threads(self._num_threads)
