"""A wide table: statements in the manner of ClickBench's over a hundred columns of page views."""

from __future__ import annotations

from benchmarks import wide_data
from benchmarks.contest import contest
from benchmarks.report import Report

GOAL = 0.7
"""Of DuckDB on its own file."""

LEFT_OUT = (
    "Of ClickBench's ideas none is Unsupported; left out are repetitions (statements 24 to 26 and 36 to 42 in part)."
    " Window functions, quantiles and `count(distinct (a, b))` are Unsupported, and ClickBench has none of them.",
)


def run(*, scale: float, quick: bool) -> Report:
    return contest(wide_data.folder(scale), QUERIES, repetitions=3 if quick else 5, goal=GOAL, notes=LEFT_OUT)


def _top(columns: str, where: str = "", aggregates: str = "count(*) as c", group: str = "", order: str = "c") -> str:
    """The ten largest groups; ties in the order of the columns."""
    keys = group or columns
    ties = ", ".join(key.rsplit(" as ", 1)[-1].strip() for key in columns.split(","))
    condition = f" where {where}" if where else ""
    return f"select {columns}, {aggregates} from hits{condition} group by {keys} order by {order} desc, {ties} limit 10"


_COUNTER = "(select counterid from hits group by counterid order by count(*) desc, counterid limit 1)"
_JULY = "eventdate >= date '2013-07-01' and eventdate <= date '2013-07-31'"

QUERIES = {
    "count": "select count(*) as c from hits",
    "count where": "select count(*) as c from hits where advengineid <> 0",
    "sum avg": "select sum(advengineid) as s, count(*) as c, avg(resolutionwidth) as a from hits",
    "avg user": "select avg(cast(userid as double)) as a from hits",
    "distinct users": "select count(distinct userid) as c from hits",
    "distinct phrases": "select count(distinct searchphrase) as c from hits",
    "range": "select min(eventdate) as first, max(eventdate) as last from hits",
    "engines": "select advengineid, count(*) as c from hits where advengineid <> 0 group by advengineid"
    " order by c desc, advengineid",
    "region users": _top("regionid", aggregates="count(distinct userid) as c"),
    "region mix": _top(
        "regionid",
        aggregates="sum(advengineid) as s, count(*) as c, avg(resolutionwidth) as a, count(distinct userid) as u",
    ),
    "phones": _top("mobilephonemodel", "mobilephonemodel <> ''", "count(distinct userid) as c"),
    "phrases": _top("searchphrase", "searchphrase <> ''"),
    "phrase users": _top("searchphrase", "searchphrase <> ''", "count(distinct userid) as c"),
    "engine phrase": _top("searchengineid, searchphrase", "searchphrase <> ''"),
    "users": _top("userid"),
    "user phrase": _top("userid, searchphrase"),
    "user any 10": "select userid, searchphrase, count(*) as c from hits where userid % 8 = 3"
    " group by userid, searchphrase order by userid, searchphrase limit 10",
    "user minute": _top(
        "userid, extract(minute from eventtime) as m, searchphrase", group="userid, m, searchphrase"
    ).replace("group by userid, m", "group by userid, extract(minute from eventtime)"),
    "one user": "select count(*) as c from hits where userid = (select min(userid) from hits)",
    "like": "select count(*) as c from hits where url like '%google%'",
    "like phrase": _top("searchphrase", "url like '%google%' and searchphrase <> ''", "min(url) as u, count(*) as c"),
    "like title": _top(
        "searchphrase",
        "title like '%shop%' and url not like '%.google%' and searchphrase <> ''",
        "min(url) as u, min(title) as t, count(*) as c, count(distinct userid) as d",
    ),
    "all columns": "select * from hits where url like '%google%' order by eventtime, watchid limit 10",
    "by time": "select searchphrase from hits where searchphrase <> '' order by eventtime, searchphrase limit 10",
    "by phrase": "select searchphrase from hits where searchphrase <> '' order by searchphrase limit 10",
    "counter length": "select counterid, avg(length(url)) as l, count(*) as c from hits where url <> ''"
    " group by counterid having count(*) > 1000 order by l desc, counterid limit 25",
    "hosts": r"select regexp_replace(referer, '^https?://(?:www\.)?([^/]+)/.*$', '\1') as k, avg(length(referer)) as l,"
    " count(*) as c, min(referer) as m from hits where referer <> ''"
    r" group by regexp_replace(referer, '^https?://(?:www\.)?([^/]+)/.*$', '\1')"
    " having count(*) > 100 order by l desc, k limit 25",
    "many sums": "select " + ", ".join(f"sum(resolutionwidth + {n}) as s{n}" for n in range(60)) + " from hits",
    "engine ip": _top(
        "searchengineid, clientip",
        "searchphrase <> ''",
        "count(*) as c, sum(cast(isrefresh as int)) as r, avg(resolutionwidth) as a",
    ),
    "watch ip": _top(
        "watchid, clientip", aggregates="count(*) as c, sum(cast(isrefresh as int)) as r, avg(resolutionwidth) as a"
    ),
    "urls": _top("url"),
    "ip shifted": _top(
        "clientip, clientip - 1 as i1, clientip - 2 as i2", group="clientip, clientip - 1, clientip - 2"
    ),
    "counter urls": _top("url", f"counterid = {_COUNTER} and {_JULY} and not dontcounthits and url <> ''"),
    "traffic": "select traficsourceid, searchengineid, advengineid,"
    " case when searchengineid = 0 and advengineid = 0 then referer else '' end as src, url as dst, count(*) as c"
    f" from hits where counterid = {_COUNTER} and {_JULY} and not isrefresh group by traficsourceid, searchengineid,"
    " advengineid, case when searchengineid = 0 and advengineid = 0 then referer else '' end, url"
    " order by c desc, traficsourceid, searchengineid, advengineid, src, dst limit 10",
    "per minute": "select date_trunc('minute', eventtime) as m, count(*) as c from hits"
    " where eventdate >= date '2013-07-14' and eventdate <= date '2013-07-15'"
    " group by date_trunc('minute', eventtime) order by m limit 10 offset 1000",
    "null sums": "select regionid, sum(orderprice) as s, avg(loadtime) as a, count(orderprice) as c from hits"
    " where loadtime is not null group by regionid order by c desc, regionid limit 10",
}
