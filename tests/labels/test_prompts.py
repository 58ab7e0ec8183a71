from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from helpers.tiny_text import HashEncoder
from unseen.errors import LabelError
from unseen.labels.prompts import CSP, CSP_ADJECTIVES, NICE, PROMPTS, PromptTemplates, as_prompt
from unseen_bench.mining import MINERS


def test_the_paper_prompt_is_one_template_and_underscores_are_spaces() -> None:
    assert NICE.texts("sports_car") == ["The nice sports car."]


def test_an_ensemble_is_averaged_before_it_is_normalised() -> None:
    encoder, templates = HashEncoder(), ("{}", "the {}", "a photo of a {}.")
    rows = encoder.texts([template.replace("{}", "cat") for template in templates])
    torch.testing.assert_close(PromptTemplates(templates).encode(["cat"], encoder)[0], normalize(rows.mean(0), dim=0))


def test_csp_averages_raw_vectors_where_the_encoder_has_them() -> None:
    class Lengths(HashEncoder):
        def raw_texts(self, prompts: Sequence[str]) -> Tensor:
            return self.texts(prompts) * torch.tensor([[float(len(prompt))] for prompt in prompts])

    encoder, templates = Lengths(), ("{}", "a photo of the nice {}.")
    raw = encoder.raw_texts([template.replace("{}", "cat") for template in templates])
    found = PromptTemplates(templates, raw=True)
    torch.testing.assert_close(found.encode(["cat"], encoder)[0], normalize(raw.mean(0), dim=0))
    assert not torch.allclose(found.encode(["cat"], encoder), PromptTemplates(templates).encode(["cat"], encoder))
    assert found.description != PromptTemplates(templates).description
    assert CSP.raw
    assert CSP_ADJECTIVES.templates.raw


def test_published_prompts_have_full_stops_only_where_their_papers_have_them() -> None:
    stops = {
        name: MINERS[name].prompt.description.endswith(".") for name in ("neglabel", "dnm", "adaneg", "online", "tanl")
    }
    assert stops == {"neglabel": False, "dnm": False, "adaneg": True, "online": True, "tanl": True}
    assert PROMPTS["photo"].description == "a photo of a {}"
    assert MINERS["neglabel"].adjective_prompt.description == "This is a {} photo"


def test_a_prompt_is_a_known_name_a_template_several_or_itself() -> None:
    assert as_prompt("csp") is PROMPTS["csp"]
    assert as_prompt("my {}") == PromptTemplates(("my {}",))
    assert as_prompt(["a {}", "b {}"]) == PromptTemplates(("a {}", "b {}"))
    assert as_prompt(NICE) is NICE


@pytest.mark.parametrize("template", ["", "no place", "{} and {}", "{name}", "{{}}"])
def test_templates_that_lose_the_name_are_refused(template: str) -> None:
    with pytest.raises(LabelError, match="template with one"):
        as_prompt(template)
