select big, count(*) as c, sum(id) as s, min(word) as w from facts group by big order by big, c limit 50
select a.big, count(*) as c from facts a join facts b on a.big = b.big where b.id % 7 = 0 group by a.big order by a.big limit 40
select text, count(*) as c, max(id) as m from facts group by text order by text limit 60
select count(*) as c, sum(b.id) as s from facts a join facts b on a.text = b.text and a.id < b.id
select count(*) as c, count(distinct text) as t, count(distinct big) as b, count(distinct word) as w from facts
select skewed, count(distinct big) as b, count(distinct text) as t from facts group by skewed order by skewed limit 30
select word, flag, small, count(*) as c, avg(ratio) as r from facts group by word, flag, small order by word, flag, small limit 80
select count(*) as c from facts where text like '%a%-%9%' and text not like '%zebra%'
select count(*) as c from facts a where not exists (select 1 from facts b where b.big = a.big + 1) and a.big is not null
select count(*) as c, sum(x.id) as s from facts x left join dimension y on x.key = y.key and x.word = y.name where y.key is null
select small, word, price, day, moment, id from facts order by small desc nulls last, word, price desc nulls last, day, moment, id limit 25
select key, sum(price) as p, sum(wide) as w, min(big) as low, max(big) as high, count(nothing) as n from facts group by key order by key
select id from facts where big in (select big from facts where small = 3) order by id
select day, date_trunc('month', moment) as m, count(*) as c from facts group by day, date_trunc('month', moment) order by day, m limit 40
select f.nothing, d.name, count(*) as c from facts f left join dimension d on f.nothing = d.key group by f.nothing, d.name order by c
select word, count(*) as c from nothing group by word
select count(*) as c, sum(id) as s, min(text) as t from nothing
