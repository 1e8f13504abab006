"""CamemBERT (Martin et al. 2019): RoBERTa for French, with its own model type."""

from dataclasses import replace

from clearhead.checkpoints.encoder_family import register
from clearhead.checkpoints.families.roberta import ROBERTA

CAMEMBERT = register(
    replace(
        ROBERTA,
        model_type="camembert",
        architecture="CamembertModel",
        masked_lm=replace(ROBERTA.masked_lm, architecture="CamembertForMaskedLM"),
        heads={
            task: replace(head, architecture=head.architecture.replace("Roberta", "Camembert"))
            for task, head in ROBERTA.heads.items()
        },
    )
)
