"""Spam by many signs at once: what it promises, how it presses, where it wants to be called.

One sign alone is in many good texts, so a text is dropped for several kinds of signs that stand close together. The
phrases are the project's own.
"""

import re
from functools import cache
from typing import Any, ClassVar

import re2

from maxtrain.config.schema.types import PositiveInt, PositiveReal
from maxtrain.corpus.document import Document
from maxtrain.corpus.rules import Drop, Rule
from maxtrain.corpus.score.statistics import statistics

_SIGNS: dict[str, tuple[str, ...]] = {
    "money": (
        r"(?:earn|make|win|get|save)\s+(?:up\s+to\s+|over\s+)?[$€£¥]\s?\d[\d,.]*",
        r"[$€£]\s?\d[\d,.]*\s*(?:a|per|every)\s+(?:day|week|month|hour)",
        r"(?:extra|passive|easy|fast|quick)\s+(?:income|money|cash)",
        r"make\s+money",
        r"money\s+back",
        r"cash\s+prize",
        r"日入过[千万百]",
        r"日[赚收入]\d",
        r"月入[过]?[\d千万]",
        r"轻松赚",
        r"赚钱",
        r"躺赚",
        r"高薪",
        r"稳赚",
        r"返利",
        r"红包",
        r"geld\s+verdienen",
        r"gagner\s+de\s+l.argent",
        r"ganar?\s+dinero",
        r"ganhe\s+dinheiro",
        r"guadagna(?:re)?\s+(?:soldi|denaro)",
        r"заработ(?:ок|ай|ать)",
        r"稼げる",
        r"副収入",
        r"부업",
        r"수익\s*보장",
        r"kiếm\s+tiền",
    ),
    "prize": (
        r"you(?:.ve|\s+have)?\s+(?:been\s+selected|won)",
        r"you\s+are\s+(?:a|the|our)\s+(?:lucky\s+)?winner",
        r"lucky\s+winner",
        r"claim\s+(?:your|the|a)\s+(?:\w+\s+)?(?:prize|gift|reward|bonus)",
        r"to\s+claim\b",
        r"jackpot",
        r"lottery\s+winner",
        r"free\s+(?:gift|iphone|ipad|voucher|prize)",
        r"中奖",
        r"中獎",
        r"领取奖",
        r"領取",
        r"抽奖",
        r"恭喜您",
        r"恭喜你",
        r"免费领",
        r"免費領",
        r"sie\s+haben\s+gewonnen",
        r"vous\s+avez\s+gagné",
        r"has\s+ganado",
        r"você\s+ganhou",
        r"hai\s+vinto",
        r"вы\s+выиграли",
        r"当選(?:おめでとう|しました)",
        r"당첨",
    ),
    "contact": (
        r"(?:whats\s?app|telegram|wechat|viber)\s*[:：+@]?\s*[+\d@]",
        r"t\.me/",
        r"wa\.me/",
        r"call\s+(?:us\s+)?now",
        r"reply\s+now",
        r"text\s+\w+\s+to\s+\d",
        r"contact\s+us\s+(?:now|today)",
        r"(?:加|添加)\s*(?:我|qq|vx|v信|微信|薇信|威信)",
        r"(?:微信|薇信|vx|qq|扣扣)\s*(?:号|群|同号)?\s*[:：]?\s*[a-z0-9_]{5,}",
        r"联系客服",
        r"聯繫客服",
        r"咨询客服",
        r"在线客服",
        r"客服qq",
        r"jetzt\s+anrufen",
        r"appelez\s+maintenant",
        r"llama\s+ya",
        r"ligue\s+agora",
        r"пишите\s+в\s+(?:лс|личку|telegram)",
        r"звоните",
        r"zalo\s*[:：]?\s*\d",
    ),
    "miracle": (
        r"(?:lose|drop|burn)\s+(?:up\s+to\s+)?\d+\s*(?:kg|kilos?|lbs?|pounds?)",
        r"weird\s+(?:old\s+)?trick",
        r"doctors\s+hate",
        r"miracle\s+(?:cure|pill|diet)",
        r"weight\s+loss\s+(?:pill|secret|miracle)",
        r"viagra",
        r"cialis",
        r"levitra",
        r"male\s+enhancement",
        r"enlarge(?:ment)?\s+pills?",
        r"anti-?aging\s+secret",
        r"cure[sd]?\s+(?:cancer|diabetes)\s+(?:fast|naturally|overnight)",
        r"减肥神",
        r"瘦身神",
        r"天瘦",
        r"月瘦",
        r"壮阳",
        r"壯陽",
        r"丰胸",
        r"豐胸",
        r"祖传秘方",
        r"包治",
        r"根治",
        r"特效药",
        r"ohne\s+rezept",
        r"sans\s+ordonnance",
        r"похуде",
        r"痩せる方法",
        r"다이어트\s*보장",
        r"giảm\s+cân\s+nhanh",
    ),
    "trade": (
        r"办证",
        r"刻章",
        r"代开[^\n]{0,4}发票",
        r"代開發票",
        r"开发票",
        r"无抵押",
        r"無抵押",
        r"小额贷款",
        r"信用卡套现",
        r"代考",
        r"代写论文",
        r"替考",
        r"黑户",
        r"刷单",
        r"刷單",
        r"刷信誉",
        r"replica\s+(?:watch|bag|rolex)",
        r"cheap\s+(?:meds|pills|viagra|replica|essays?)",
        r"no\s+(?:prescription|credit\s+check)",
        r"payday\s+loans?",
        r"online\s+(?:casino|pharmacy|betting)",
        r"casino\s+bonus",
        r"sports?\s+betting",
        r"博彩",
        r"赌场",
        r"时时彩",
        r"六合彩",
        r"娱乐城",
        r"百家乐",
        r"老虎机",
        r"澳门(?:新)?葡京",
        r"真人荷官",
        r"escort\s+service",
        r"cam\s+girls?",
        r"adult\s+dating",
        r"hot\s+singles",
        r"fake\s+(?:id|passport)",
        r"diplom(?:a|e)s?\s+for\s+sale",
        r"kredit\s+ohne",
        r"crédit\s+rapide",
        r"préstamos?\s+rápido",
        r"казино",
        r"ставки\s+на\s+спорт",
        r"кредит\s+без",
        r"出会い系",
        r"オンラインカジノ",
        r"카지노",
        r"토토사이트",
        r"대출\s*상담",
        r"cá\s+cược",
    ),
    "press": (
        r"act\s+(?:now|fast)",
        r"limited\s+(?:time|spots?|offer|stock|places)",
        r"(?:only|just)\s+\d+\s+(?:left|spots?|places)",
        r"order\s+(?:now|today)",
        r"buy\s+now",
        r"click\s+(?:here|now|below|the\s+link|https?://|www\.)",
        r"hurry\b",
        r"don.t\s+miss",
        r"once\s+in\s+a\s+lifetime",
        r"100\s?%\s+(?:free|safe|guaranteed|satisfaction)",
        r"risk[\s-]free",
        r"guaranteed\s+(?:income|results?|approval|winner)",
        r"satisfaction\s+guaranteed",
        r"no\s+obligation",
        r"sign\s+up\s+(?:now|today|free)",
        r"special\s+promotion",
        r"best\s+price",
        r"lowest\s+price",
        r"free\s+(?:shipping|trial|access)",
        r"仅限今[日天]",
        r"限时",
        r"限時",
        r"名额有限",
        r"名額有限",
        r"点击(?:领取|进入|查看|链接|\s*https?)",
        r"请点击",
        r"點擊(?:領取|進入|連結)",
        r"立即(?:抢购|购买|下单|咨询|加入|注册)",
        r"马上(?:抢|加入|咨询)",
        r"全国包邮",
        r"包邮",
        r"低价",
        r"低價",
        r"特价",
        r"厂家直销",
        r"先到先得",
        r"機不可失",
        r"nur\s+heute",
        r"jetzt\s+(?:kaufen|bestellen|sichern)",
        r"klicken\s+sie\s+hier",
        r"cliquez\s+ici",
        r"offre\s+limitée",
        r"haz\s+clic",
        r"oferta\s+limitada",
        r"compre\s+agora",
        r"clique\s+aqui",
        r"clicca\s+qui",
        r"offerta\s+limitata",
        r"только\s+сегодня",
        r"жми(?:те)?\b",
        r"успей(?:те)?\b",
        r"今だけ",
        r"今すぐ(?:クリック|購入|登録)",
        r"무료\s*체험",
        r"지금\s*(?:클릭|신청)",
        r"mua\s+ngay",
        r"nhấp\s+vào",
    ),
    "work": (
        r"work\s+(?:from|at)\s+home",
        r"home[\s-]based\s+(?:business|job)",
        r"be\s+your\s+own\s+boss",
        r"no\s+experience\s+(?:needed|required|necessary)",
        r"financial\s+freedom",
        r"兼职",
        r"兼職",
        r"日结",
        r"日結",
        r"在家轻松",
        r"在家輕鬆",
        r"在家赚",
        r"招聘兼",
        r"打字员",
        r"网赚",
        r"手机赚",
        r"heimarbeit",
        r"travail\s+à\s+domicile",
        r"trabaj[ae]\s+desde\s+casa",
        r"trabalhe\s+em\s+casa",
        r"работа\s+на\s+дому",
        r"在宅ワーク",
        r"재택\s*알바",
        r"việc\s+nhẹ\s+lương\s+cao",
    ),
}


@cache
def _matchers() -> tuple[Any, list[tuple[str, Any]]]:
    """All signs in one automaton, which tells whether there is any, and each kind's own."""
    options = re2.Options()
    options.case_sensitive = False
    options.max_mem = 64 * 2**20
    patterns = {kind: "|".join(phrases) for kind, phrases in _SIGNS.items()}
    any_sign = re2.compile("|".join(f"(?:{pattern})" for pattern in patterns.values()), options)
    return any_sign, [(kind, re2.compile(f"(?:{pattern})", options)) for kind, pattern in patterns.items()]


_SHOUT = re.compile(r"[!！]{2,}|[A-Z]{4,}\s+[A-Z]{4,}\s+[A-Z]{4,}|[★☆◆●▶►✓✔💰🔥🎁]{2,}")
_HEAD = 6000
"""Characters that are looked at: spam says it soon."""


class Spam(Rule):
    """Advertising that promises, presses and wants to be called is left out."""

    name: ClassVar[str] = "spam"

    min_kinds: PositiveInt = 2
    """Least kinds of signs: money, prize, contact, miracle, trade, press, work, shouting, saying it twice."""
    min_density: PositiveReal = 2.5
    """Least signs a hundred units; half of it where there are four kinds and more."""

    def apply(self, document: Document) -> Drop | None:
        """Drop spam."""
        if document.is_code or document.category == "math":
            return None
        text = document.text[:_HEAD]
        any_sign, kinds_of = _matchers()
        if not any_sign.search(text):
            return None
        counts = {kind: sum(1 for _ in pattern.finditer(text)) for kind, pattern in kinds_of}
        found = sum(counts.values())
        stats = statistics(document.text)
        units = min(stats.units, stats.units * len(text) / max(len(document.text), 1))
        shouts = len(_SHOUT.findall(text))
        kinds = sum(count > 0 for count in counts.values()) + (shouts > 0)
        if stats.num_lines >= 3 and stats.repeated_lines[1] > 0.25:
            kinds += 1
        density = 100 * (found + min(shouts, found)) / max(units, 20)
        least = self.min_density / 2 if kinds >= self.min_kinds + 2 else self.min_density
        return Drop("spam", density) if kinds >= self.min_kinds and density >= least else None
