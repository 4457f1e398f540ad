"""Spam by many signs at once: what it promises, how it presses, where it wants to be called.

One sign alone is in many good texts, so a text is dropped for several kinds of signs that stand close together. The
phrases are the project's own.
"""

import re
from typing import ClassVar

from maxtrain.config.schema.types import PositiveInt, PositiveReal
from maxtrain.corpus.document import Document
from maxtrain.corpus.rules import Drop, Rule
from maxtrain.corpus.score.statistics import statistics

_SIGNS: dict[str, str] = {
    "money": r"""(?:earn|make|win|get|save)\s+(?:up\s+to\s+|over\s+)?[$€£¥]\s?\d[\d,.]*|[$€£]\s?\d[\d,.]*\s*(?:a|per|every)\s+(?:day|week|
        month|hour)|(?:extra|passive|easy|fast|quick)\s+(?:income|money|cash)|make\s+money|money\s+back|cash\s+prize|
        日入过[千万百]|日[赚收入]\d|月入[过]?[\d千万]|轻松赚|赚钱|躺赚|高薪|稳赚|返利|红包|geld\s+verdienen|gagner\s+de\s+l.argent|ganar?\s+dinero|
        ganhe\s+dinheiro|guadagna(?:re)?\s+(?:soldi|denaro)|заработ(?:ок|ай|ать)|稼げる|副収入|부업|수익\s*보장|kiếm\s+tiền""",
    "prize": r"""you(?:.ve|\s+have)?\s+(?:been\s+selected|won)|you\s+are\s+(?:a|the|our)\s+(?:lucky\s+)?winner|lucky\s+winner|claim\s+
        (?:your|the|a)\s+(?:\w+\s+)?(?:prize|gift|reward|bonus)|to\s+claim\b|jackpot|lottery\s+winner|free\s+(?:gift|iphone|ipad|voucher|prize)|
        中奖|中獎|领取奖|領取|抽奖|恭喜您|恭喜你|免费领|免費領|sie\s+haben\s+gewonnen|vous\s+avez\s+gagné|has\s+ganado|você\s+ganhou|hai\s+vinto|
        вы\s+выиграли|当選(?:おめでとう|しました)|당첨""",
    "contact": r"""(?:whats\s?app|telegram|wechat|viber)\s*[:：+@]?\s*[+\d@]|t\.me/|wa\.me/|call\s+(?:us\s+)?now|reply\s+now|text\s+\w+\s+to\s+\d|
        contact\s+us\s+(?:now|today)|(?:加|添加)\s*(?:我|qq|vx|v信|微信|薇信|威信)|(?:微信|薇信|vx|qq|扣扣)\s*(?:号|群|同号)?\s*[:：]?\s*[a-z0-9_]{5,}|
        联系客服|聯繫客服|咨询客服|在线客服|客服qq|jetzt\s+anrufen|appelez\s+maintenant|llama\s+ya|ligue\s+agora|пишите\s+в\s+(?:лс|личку|telegram)|
        звоните|zalo\s*[:：]?\s*\d""",
    "miracle": r"""(?:lose|drop|burn)\s+(?:up\s+to\s+)?\d+\s*(?:kg|kilos?|lbs?|pounds?)|weird\s+(?:old\s+)?trick|doctors\s+hate|miracle\s+(?:cure|pill|diet)|
        weight\s+loss\s+(?:pill|secret|miracle)|viagra|cialis|levitra|male\s+enhancement|enlarge(?:ment)?\s+pills?|anti-?aging\s+secret|cure[sd]?\s+
        (?:cancer|diabetes)\s+(?:fast|naturally|overnight)|减肥神|瘦身神|天瘦|月瘦|壮阳|壯陽|丰胸|豐胸|祖传秘方|包治|根治|特效药|ohne\s+rezept|sans\s+ordonnance|
        похуде|痩せる方法|다이어트\s*보장|giảm\s+cân\s+nhanh""",
    "trade": r"""办证|刻章|代开[^\n]{0,4}发票|代開發票|开发票|无抵押|無抵押|小额贷款|信用卡套现|代考|代写论文|替考|黑户|刷单|刷單|刷信誉|replica\s+
        (?:watch|bag|rolex)|cheap\s+(?:meds|pills|viagra|replica|essays?)|no\s+(?:prescription|credit\s+check)|payday\s+loans?|online\s+(?:casino|pharmacy|
        betting)|casino\s+bonus|sports?\s+betting|博彩|赌场|时时彩|六合彩|娱乐城|百家乐|老虎机|澳门(?:新)?葡京|真人荷官|escort\s+service|cam\s+girls?|adult\s+dating|
        hot\s+singles|fake\s+(?:id|passport)|diplom(?:a|e)s?\s+for\s+sale|kredit\s+ohne|crédit\s+rapide|préstamos?\s+rápido|казино|ставки\s+на\s+спорт|
        кредит\s+без|出会い系|オンラインカジノ|카지노|토토사이트|대출\s*상담|cá\s+cược""",
    "press": r"""act\s+(?:now|fast)|limited\s+(?:time|spots?|offer|stock|places)|(?:only|just)\s+\d+\s+(?:left|spots?|places)|order\s+(?:now|today)|buy\s+now|
        click\s+(?:here|now|below|the\s+link|https?://|www\.)|hurry\b|don.t\s+miss|once\s+in\s+a\s+lifetime|100\s?%\s+(?:free|safe|guaranteed|satisfaction)|
        risk[\s-]free|guaranteed\s+(?:income|results?|approval|winner)|satisfaction\s+guaranteed|no\s+obligation|sign\s+up\s+(?:now|today|free)|
        special\s+promotion|best\s+price|lowest\s+price|free\s+(?:shipping|trial|access)|仅限今[日天]|限时|限時|名额有限|名額有限|点击(?:领取|进入|查看|链接|\s*https?)|
        请点击|點擊(?:領取|進入|連結)|立即(?:抢购|购买|下单|咨询|加入|注册)|马上(?:抢|加入|咨询)|全国包邮|包邮|低价|低價|特价|厂家直销|先到先得|機不可失|
        nur\s+heute|jetzt\s+(?:kaufen|bestellen|sichern)|klicken\s+sie\s+hier|cliquez\s+ici|offre\s+limitée|haz\s+clic|oferta\s+limitada|compre\s+agora|
        clique\s+aqui|clicca\s+qui|offerta\s+limitata|только\s+сегодня|жми(?:те)?\b|успей(?:те)?\b|今だけ|今すぐ(?:クリック|購入|登録)|무료\s*체험|지금\s*(?:클릭|신청)|
        mua\s+ngay|nhấp\s+vào""",
    "work": r"""work\s+(?:from|at)\s+home|home[\s-]based\s+(?:business|job)|be\s+your\s+own\s+boss|no\s+experience\s+(?:needed|required|necessary)|financial\s+
        freedom|兼职|兼職|日结|日結|在家轻松|在家輕鬆|在家赚|招聘兼|打字员|网赚|手机赚|heimarbeit|travail\s+à\s+domicile|trabaj[ae]\s+desde\s+casa|trabalhe\s+em\s+casa|
        работа\s+на\s+дому|在宅ワーク|재택\s*알바|việc\s+nhẹ\s+lương\s+cao""",
}
_SPAM = re.compile("|".join(f"(?P<{kind}>{pattern})" for kind, pattern in _SIGNS.items()), re.IGNORECASE | re.VERBOSE)
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
        if document.is_code:
            return None
        text = document.text[:_HEAD]
        found = [match.lastgroup for match in _SPAM.finditer(text)]
        if not found:
            return None
        stats = statistics(document.text)
        units = min(stats.units, stats.units * len(text) / max(len(document.text), 1))
        shouts = len(_SHOUT.findall(text))
        kinds = len(set(found)) + (shouts > 0)
        if stats.num_lines >= 3 and stats.repeated_lines[1] > 0.25:
            kinds += 1
        density = 100 * (len(found) + min(shouts, len(found))) / max(units, 20)
        least = self.min_density / 2 if kinds >= self.min_kinds + 2 else self.min_density
        return Drop("spam", density) if kinds >= self.min_kinds and density >= least else None
