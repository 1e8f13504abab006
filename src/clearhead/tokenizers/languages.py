"""Language tokens of multilingual models, and the codes of their languages."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

MBART_CODES = tuple(
    "ar_AR cs_CZ de_DE en_XX es_XX et_EE fi_FI fr_XX gu_IN hi_IN it_IT ja_XX kk_KZ ko_KR lt_LT lv_LV my_MM ne_NP nl_XX "
    "ro_RO ru_RU si_LK tr_TR vi_VN zh_CN".split()
)
"""Languages of mBART (Liu et al. 2020), in the order of their ids."""

MBART50_CODES = (
    *MBART_CODES,
    *(
        "af_ZA az_AZ bn_IN fa_IR he_IL hr_HR id_ID ka_GE km_KH mk_MK ml_IN mn_MN mr_IN pl_PL ps_AF pt_XX sv_SE sw_KE "
        "ta_IN te_IN th_TH tl_XX uk_UA ur_PK xh_ZA gl_ES sl_SI".split()
    ),
)
"""Languages of mBART-50 (Tang et al. 2020), in the order of their ids."""

M2M100_CODES = {
    "m2m100": tuple(
        "af am ar ast az ba be bg bn br bs ca ceb cs cy da de el en es et fa ff fi fr fy ga gd gl gu ha he hi hr ht hu "
        "hy id ig ilo is it ja jv ka kk km kn ko lb lg ln lo lt lv mg mk ml mn mr ms my ne nl no ns oc or pa pl ps pt "
        "ro ru sd si sk sl so sq sr ss su sv sw ta th tl tn tr uk ur uz vi wo xh yi yo zh zu".split()
    ),
    "wmt21": tuple("en ha is ja cs ru zh de".split()),
}
"""Languages of M2M100 (Fan et al. 2020) and of its WMT 2021 models, in the order of their ids."""

NLLB_CODES = tuple(
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
"""Languages of NLLB-200 (NLLB Team 2022), in the order of their ids."""


@dataclass(frozen=True)
class LanguageTokenScheme:
    """Language tokens of a family: how they are written, and their place in source and target.

    Args:
        template: the token of a language, with {} for its code.
        code_pattern: a regular expression that matches the codes.
        default_source: the default source language; None for families that only take a target language.
        source_after_eos: whether the source language follows the end token, instead of preceding the text.
        starts_target: whether the language token replaces the start token of a target.
    """

    template: str
    code_pattern: str
    default_source: str | None
    source_after_eos: bool = False
    starts_target: bool = False

    def language_ids(self, vocabulary: Mapping[str, int]) -> dict[str, int]:
        """Return the languages of a vocabulary, from code to id, in the order of their ids."""
        start, end = (re.escape(part) for part in self.template.split("{}"))
        pattern = re.compile(f"{start}({self.code_pattern}){end}")
        codes = ((match[1], number) for token, number in vocabulary.items() if (match := pattern.fullmatch(token)))
        return dict(sorted(codes, key=lambda pair: pair[1]))

    @property
    def forces_target(self) -> bool:
        """Whether the first generated token is the target language; if not, it is a token of the source text."""
        return self.default_source is not None

    def source_language(self, config: Mapping[str, Any]) -> str | None:
        """Return the source language of a tokenizer_config.json, or else the default of the family."""
        if self.default_source is None:
            return None
        code = config.get("src_lang")
        return code if isinstance(code, str) and code else self.default_source

    def choose_languages(
        self, known: Mapping[str, int], config: Mapping[str, Any], source: str | None, target: str | None
    ) -> tuple[str | None, str]:
        """Return the source and target language: the given ones, else those of the config, else the family's defaults.

        Args:
            known: the languages of the vocabulary.
            config: the contents of tokenizer_config.json.
            source: the requested source language, or None.
            target: the requested target language, or None.

        Raises:
            ValueError: a language is not supported, the target is missing, or the family takes no source language.
        """
        if not self.forces_target:
            if source is not None:
                raise ValueError(f"this model takes a target language only; leave the source language out: {source!r}")
            default = config.get("target_lang")
            # in Marian's configs this may be a group of languages, such as "ROMANCE"
            default = default if default in known else None
        else:
            source = self.source_language(config) if source is None else source
            default = config.get("tgt_lang")
        target = default if target is None else target
        if target is None:
            raise ValueError(
                f"this model translates into several languages. Choose the target language: {', '.join(known)}"
            )
        for code in (source, target):
            if code is not None and code not in known:
                raise ValueError(f"this model does not support the language {code!r}. Use one of: {', '.join(known)}")
        return source, target

    def surrounding_tokens(self, source: str | None, target: str | None, end: str) -> tuple[list[str], list[str]]:
        """Return the tokens before and after a source text; `end` is the end token."""
        if not self.forces_target:
            return ([] if target is None else [self.template.format(target)]), [end]
        token = [] if source is None else [self.template.format(source)]
        return ([], [end, *token]) if self.source_after_eos else (token, [end])

    def with_default_languages(
        self, config: Mapping[str, Any], source: str | None, target: str | None
    ) -> dict[str, Any]:
        """Return a tokenizer_config.json in which these languages are the defaults."""
        keys = ("src_lang", "tgt_lang") if self.forces_target else ("source_lang", "target_lang")
        return {**config, **{key: code for key, code in zip(keys, (source, target), strict=True) if code is not None}}
