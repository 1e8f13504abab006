"""How multilingual families are told the language of a text, and which languages there are."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

MBART = tuple(
    "ar_AR cs_CZ de_DE en_XX es_XX et_EE fi_FI fr_XX gu_IN hi_IN it_IT ja_XX kk_KZ ko_KR lt_LT lv_LV my_MM ne_NP nl_XX "
    "ro_RO ru_RU si_LK tr_TR vi_VN zh_CN".split()
)
"""The languages of mBART (Liu et al. 2020), in the order of their ids."""

MBART50 = (
    *MBART,
    *(
        "af_ZA az_AZ bn_IN fa_IR he_IL hr_HR id_ID ka_GE km_KH mk_MK ml_IN mn_MN mr_IN pl_PL ps_AF pt_XX sv_SE sw_KE "
        "ta_IN te_IN th_TH tl_XX uk_UA ur_PK xh_ZA gl_ES sl_SI".split()
    ),
)
"""The languages of mBART-50 (Tang et al. 2020), in the order of their ids."""

M2M100 = {
    "m2m100": tuple(
        "af am ar ast az ba be bg bn br bs ca ceb cs cy da de el en es et fa ff fi fr fy ga gd gl gu ha he hi hr ht hu "
        "hy id ig ilo is it ja jv ka kk km kn ko lb lg ln lo lt lv mg mk ml mn mr ms my ne nl no ns oc or pa pl ps pt "
        "ro ru sd si sk sl so sq sr ss su sv sw ta th tl tn tr uk ur uz vi wo xh yi yo zh zu".split()
    ),
    "wmt21": tuple("en ha is ja cs ru zh de".split()),
}
"""The languages of M2M100 (Fan et al. 2020) and of its WMT 2021 models, in the order of their ids."""

NLLB = tuple(
    "ace_Arab ace_Latn acm_Arab acq_Arab aeb_Arab afr_Latn ajp_Arab aka_Latn amh_Ethi apc_Arab arb_Arab ars_Arab "
    "ary_Arab arz_Arab asm_Beng ast_Latn awa_Deva ayr_Latn azb_Arab azj_Latn bak_Cyrl bam_Latn ban_Latn bel_Cyrl "
    "bem_Latn ben_Beng bho_Deva bjn_Arab bjn_Latn bod_Tibt bos_Latn bug_Latn bul_Cyrl cat_Latn ceb_Latn ces_Latn "
    "cjk_Latn ckb_Arab crh_Latn cym_Latn dan_Latn deu_Latn dik_Latn dyu_Latn dzo_Tibt ell_Grek eng_Latn epo_Latn "
    "est_Latn eus_Latn ewe_Latn fao_Latn pes_Arab fij_Latn fin_Latn fon_Latn fra_Latn fur_Latn fuv_Latn gla_Latn "
    "gle_Latn glg_Latn grn_Latn guj_Gujr hat_Latn hau_Latn heb_Hebr hin_Deva hne_Deva hrv_Latn hun_Latn hye_Armn "
    "ibo_Latn ilo_Latn ind_Latn isl_Latn ita_Latn jav_Latn jpn_Jpan kab_Latn kac_Latn kam_Latn kan_Knda kas_Arab "
    "kas_Deva kat_Geor knc_Arab knc_Latn kaz_Cyrl kbp_Latn kea_Latn khm_Khmr kik_Latn kin_Latn kir_Cyrl kmb_Latn "
    "kon_Latn kor_Hang kmr_Latn lao_Laoo lvs_Latn lij_Latn lim_Latn lin_Latn lit_Latn lmo_Latn ltg_Latn ltz_Latn "
    "lua_Latn lug_Latn luo_Latn lus_Latn mag_Deva mai_Deva mal_Mlym mar_Deva min_Latn mkd_Cyrl plt_Latn mlt_Latn "
    "mni_Beng khk_Cyrl mos_Latn mri_Latn zsm_Latn mya_Mymr nld_Latn nno_Latn nob_Latn npi_Deva nso_Latn nus_Latn "
    "nya_Latn oci_Latn gaz_Latn ory_Orya pag_Latn pan_Guru pap_Latn pol_Latn por_Latn prs_Arab pbt_Arab quy_Latn "
    "ron_Latn run_Latn rus_Cyrl sag_Latn san_Deva sat_Beng scn_Latn shn_Mymr sin_Sinh slk_Latn slv_Latn smo_Latn "
    "sna_Latn snd_Arab som_Latn sot_Latn spa_Latn als_Latn srd_Latn srp_Cyrl ssw_Latn sun_Latn swe_Latn swh_Latn "
    "szl_Latn tam_Taml tat_Cyrl tel_Telu tgk_Cyrl tgl_Latn tha_Thai tir_Ethi taq_Latn taq_Tfng tpi_Latn tsn_Latn "
    "tso_Latn tuk_Latn tum_Latn tur_Latn twi_Latn tzm_Tfng uig_Arab ukr_Cyrl umb_Latn urd_Arab uzn_Latn vec_Latn "
    "vie_Latn war_Latn wol_Latn xho_Latn ydd_Hebr yor_Latn yue_Hant zho_Hans zho_Hant zul_Latn".split()
)
"""The languages of NLLB-200 (NLLB Team 2022), in the order of their ids."""


@dataclass(frozen=True)
class LanguageTokenScheme:
    """How a family spells its languages as tokens, and where in the source they stand.

    Args:
        spelling: the token of a language, with {} for its code.
        code: a regular expression of the codes.
        default: the source language where nobody says one; None for families that are told the target only.
        behind: whether the source language stands behind the text's end token, not in front of the text.
        starts: whether a target starts with its language, in place of the start token.
    """

    spelling: str
    code: str
    default: str | None
    behind: bool = False
    starts: bool = False

    def known(self, vocabulary: Mapping[str, int]) -> dict[str, int]:
        """The languages in a vocabulary, code to id, in the order of their ids."""
        start, end = (re.escape(part) for part in self.spelling.split("{}"))
        pattern = re.compile(f"{start}({self.code}){end}")
        found = ((match[1], number) for token, number in vocabulary.items() if (match := pattern.fullmatch(token)))
        return dict(sorted(found, key=lambda pair: pair[1]))

    @property
    def forces_target(self) -> bool:
        """Whether generation is told the target, by its first token; else the source text is."""
        return self.default is not None

    def source(self, config: Mapping[str, Any]) -> str | None:
        """The source language where nobody says one."""
        return None if self.default is None else config.get("src_lang") or self.default

    def choose(
        self, known: Mapping[str, int], config: Mapping[str, Any], source: str | None, target: str | None
    ) -> tuple[str | None, str]:
        """Source and target, from what was asked, else from a tokenizer's config, else the family's default.

        Raises:
            ValueError: a language that the model does not know, no target, or a source where none can be said.
        """
        if not self.forces_target:
            if source is not None:
                raise ValueError(f"this model is told the target only; leave the source language out: {source!r}")
            fallback = config.get("target_lang")
            # Marian's configs also hold names of language groups here, such as "ROMANCE"
            fallback = fallback if fallback in known else None
        else:
            source = self.source(config) if source is None else source
            fallback = config.get("tgt_lang")
        target = fallback if target is None else target
        if target is None:
            raise ValueError(f"this model translates into several languages: name the target; it knows {_list(known)}")
        for code in (source, target):
            if code is not None and code not in known:
                raise ValueError(f"this model does not know the language {code!r}; it knows {_list(known)}")
        return source, target

    def frame(self, source: str | None, target: str | None, end: str) -> tuple[list[str], list[str]]:
        """The tokens in front of a source text and those behind it."""
        if not self.forces_target:
            return ([] if target is None else [self.spelling.format(target)]), [end]
        token = [] if source is None else [self.spelling.format(source)]
        return ([], [end, *token]) if self.behind else (token, [end])

    def noted(self, config: Mapping[str, Any], source: str | None, target: str | None) -> dict[str, Any]:
        """A tokenizer's config that names these languages as the defaults."""
        keys = ("src_lang", "tgt_lang") if self.forces_target else ("source_lang", "target_lang")
        return {**config, **{key: code for key, code in zip(keys, (source, target), strict=True) if code is not None}}


SCHEMES = {
    "marian": LanguageTokenScheme(">>{}<<", r"[^<>\s]+", default=None),
    "mbart": LanguageTokenScheme("{}", "[a-z]{2}_[A-Z]{2}", default="en_XX", behind=True, starts=True),
    "mbart50": LanguageTokenScheme("{}", "[a-z]{2}_[A-Z]{2}", default="en_XX"),
    "m2m_100": LanguageTokenScheme("__{}__", "[a-z]{2,3}", default="en"),
    "nllb": LanguageTokenScheme("{}", "[a-z]{3}_[A-Z][a-z]{3}", default="eng_Latn"),
}


def scheme(family: str, config: Mapping[str, Any]) -> LanguageTokenScheme | None:
    """How a family is told languages; None for a family that has none."""
    found = SCHEMES.get(family)
    if found is not None and family == "nllb" and config.get("legacy_behaviour"):
        return replace(found, behind=True)
    return found


def _list(known: Mapping[str, int]) -> str:
    return ", ".join(known)
