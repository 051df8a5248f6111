"""One wide table of page views after ClickBench's: a hundred columns, long texts, most of them empty, skewed, NULLs."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import numpy as np
import pyarrow as pa

from benchmarks.data import ROOT
from benchmarks.random_columns import generate, picked, random_keys, shuffled_skew, skewed, with_nulls

ROWS = 1_500_000
"""At scale 1."""

_SITES = ("google", "yandex", "shop", "news", "auto", "kino", "forum", "mail", "video", "wiki")
_WORDS = (
    *("buy", "cheap", "rent", "house", "car", "film", "online", "photo", "weather", "map", "hotel", "ticket", "bank"),
    *("radio", "recipe", "school", "football", "dress", "phone", "game", "doctor", "train", "credit", "garden"),
)
_START = int(datetime(2013, 7, 1).timestamp())
_SECONDS = 31 * 86_400
_FLAGS = (
    *("javaenable", "isrefresh", "islink", "isdownload", "isnotbounce", "isoldcounter", "isevent", "isparameter"),
    *("cookieenable", "javascriptenable", "ismobile", "dontcounthits", "withhash", "isartifical", "goodevent"),
)
_SMALL = (
    *("flashmajor", "flashminor", "netmajor", "netminor", "useragentmajor", "resolutiondepth", "os", "useragent"),
    *("age", "sex", "income", "interests", "robotness", "windowclienttimezone", "silverlightversion1", "hitcolor"),
    *("silverlightversion2", "silverlightversion4", "historylength", "httperror", "codeversion", "sociala"),
    *("paramcurrencyid", "openstatserviceid", "mobilephone", "traficsourceid", "searchengineid", "advengineid"),
)
_MEDIUM = (
    *("counterclass", "ipnetworkid", "clienttimezone", "windowclientwidth", "windowclientheight", "urlcategoryid"),
    *("referercategoryid", "sendtiming", "dnstiming", "connecttiming", "responsestarttiming", "responseendtiming"),
    *("fetchtiming", "urlregionid", "refererregionid", "windowname", "openername", "socialsourcenetworkid"),
)
_HASHES = ("urlhash", "refererhash", "funiqid", "hid", "remoteip", "paramprice", "clid")
_TEXTS = (
    *("browserlanguage", "browsercountry", "pagecharset", "params", "originalurl", "flashminor2", "utmsource"),
    *("utmmedium", "utmcampaign", "utmcontent", "utmterm", "fromtag", "openstatadid", "openstatcampaignid"),
)


def folder(scale: float) -> Path:
    """The table `hits` at this scale, generated once."""
    return generate(ROOT / f"wide-{scale:g}", {"hits": lambda: _hits(np.random.default_rng(6), int(ROWS * scale))})


def _hits(random: np.random.Generator, rows: int) -> pa.Table:
    """Three quarters of the columns are only there to be passed over, as in most wide tables."""
    seconds = np.sort(random.integers(0, _SECONDS, rows)) + _START
    moments = pa.array(seconds * 1_000_000, pa.timestamp("us"))
    users = random_keys(random, rows // 6)
    who = shuffled_skew(random, len(users), rows, 0.6)
    urls = _urls(random, max(rows // 6, 10))
    titles = [f"{' '.join(_phrase(random))} - {_SITES[number % len(_SITES)]}" for number in range(max(rows // 20, 10))]
    phrases = ["", *{" ".join(_phrase(random)) for _ in range(max(rows // 15, 10))}]
    regions = shuffled_skew(random, 5_000, len(users), 1.0)
    visited = shuffled_skew(random, len(urls), rows, 0.9)
    searched = np.where(random.random(rows) < 0.87, 0, skewed(random, len(phrases) - 1, rows, 0.8) + 1)
    referred = np.where(random.random(rows) < 0.2, 0, shuffled_skew(random, len(urls), rows, 0.9))
    columns: dict[str, object] = {
        "watchid": random_keys(random, rows),
        "eventtime": moments,
        "eventdate": moments.cast(pa.date32()),
        "counterid": shuffled_skew(random, 6_000, rows, 1.1).astype(np.int32),
        "clientip": random.integers(-(2**31), 2**31, len(users))[who].astype(np.int32),
        "regionid": regions[who].astype(np.int32),
        "userid": users[who],
        "url": picked(urls, visited),
        "referer": picked(["", *urls[1:]], referred),
        "title": picked(titles, shuffled_skew(random, len(titles), rows, 0.9)),
        "searchphrase": picked(phrases, searched),
        "mobilephonemodel": picked(("", "iPad", "iPhone", "Galaxy", "Nokia"), skewed(random, 5, rows, 3.0)),
        "resolutionwidth": random.choice(np.array([0, 1024, 1280, 1366, 1600, 1638, 1920], np.int16), rows),
        "resolutionheight": random.choice(np.array([0, 768, 800, 900, 1080], np.int16), rows),
        "clienteventtime": pa.array((seconds + random.integers(-90, 90, rows)) * 1_000_000, pa.timestamp("us")),
        "localeventtime": with_nulls(random, seconds + 3600 * random.integers(-11, 12, rows), 0.1).cast(
            pa.timestamp("s")
        ),
        "orderprice": with_nulls(random, np.round(random.lognormal(3, 1, rows), 2), 0.9),
        "loadtime": with_nulls(random, random.lognormal(6, 1, rows).astype(np.int32), 0.3),
    }
    columns |= {name: (random.random(rows) < share) for name, share in zip(_FLAGS, np.linspace(0.02, 0.9, 15))}
    columns |= {name: (skewed(random, 60, rows, 1.5)).astype(np.int16) for name in _SMALL}
    columns |= {name: with_nulls(random, random.integers(0, 30_000, rows, np.int32), 0.2) for name in _MEDIUM}
    columns |= {name: random.integers(-(2**62), 2**62, 50_000)[random.integers(0, 50_000, rows)] for name in _HASHES}
    columns |= {
        name: with_nulls(random, picked(phrases[:2000], skewed(random, min(2000, len(phrases)), rows, 1.4)), 0.3)
        for name in _TEXTS
    }
    columns["urlhash"] = random_keys(random, len(urls))[visited]
    return pa.table(columns)


def _phrase(random: np.random.Generator) -> list[str]:
    return [_WORDS[word] for word in random.integers(0, len(_WORDS), random.integers(1, 6))]


def _urls(random: np.random.Generator, count: int) -> list[str]:
    """Different addresses of 40 to 140 characters; the first is of a search engine."""
    sites = skewed(random, 400, count, 1.0).tolist()
    lengths = random.integers(1, 6, count).tolist()
    words = random.integers(0, len(_WORDS), (count, 6)).tolist()
    numbers = random.integers(0, 2**62, count).tolist()
    return [
        f"http://{_SITES[site % len(_SITES)]}{site}.example.com/"
        + "/".join(_WORDS[word] for word in row[:length])
        + f"?id={number}&page={position}"
        for position, (site, length, row, number) in enumerate(zip(sites, lengths, words, numbers))
    ]
