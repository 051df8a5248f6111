"""The proleptic Gregorian calendar on tensors of days since 1970-01-01.

Howard Hinnant's algorithms ("chrono-compatible low-level date algorithms"): years start in March, eras have 400 years.
"""

from __future__ import annotations

from typing import NamedTuple

import torch


class Civil(NamedTuple):
    """Year, month (1 to 12) and day (from 1), int64."""

    year: torch.Tensor
    month: torch.Tensor
    day: torch.Tensor


def floor_divide(values: torch.Tensor, divisor: int) -> torch.Tensor:
    return torch.div(values, divisor, rounding_mode="floor")


def civil_from_days(days: torch.Tensor) -> Civil:
    shifted = days.to(torch.int64) + 719_468
    era = floor_divide(shifted, 146_097)
    day_of_era = shifted - era * 146_097
    year_of_era = floor_divide(
        day_of_era
        - floor_divide(day_of_era, 1_460)
        + floor_divide(day_of_era, 36_524)
        - floor_divide(day_of_era, 146_096),
        365,
    )
    day_of_year = day_of_era - (365 * year_of_era + floor_divide(year_of_era, 4) - floor_divide(year_of_era, 100))
    month_from_march = floor_divide(5 * day_of_year + 2, 153)
    day = day_of_year - floor_divide(153 * month_from_march + 2, 5) + 1
    month = month_from_march + torch.where(month_from_march < 10, 3, -9)
    return Civil(year_of_era + era * 400 + (month <= 2), month, day)


def days_from_civil(civil: Civil) -> torch.Tensor:
    year = civil.year - (civil.month <= 2).to(torch.int64)
    era = floor_divide(year, 400)
    year_of_era = year - era * 400
    month_from_march = civil.month + torch.where(civil.month > 2, -3, 9)
    day_of_year = floor_divide(153 * month_from_march + 2, 5) + civil.day - 1
    day_of_era = year_of_era * 365 + floor_divide(year_of_era, 4) - floor_divide(year_of_era, 100) + day_of_year
    return era * 146_097 + day_of_era - 719_468


def days_in_month(year: torch.Tensor, month: torch.Tensor) -> torch.Tensor:
    next_month = torch.where(month == 12, 1, month + 1)
    next_year = year + (month == 12).to(torch.int64)
    one = torch.ones_like(month)
    return days_from_civil(Civil(next_year, next_month, one)) - days_from_civil(Civil(year, month, one))


def add_months(days: torch.Tensor, months: int) -> torch.Tensor:
    """The same day `months` later; the last day of a month that is too short for it."""
    civil = civil_from_days(days)
    index = civil.year * 12 + (civil.month - 1) + months
    year = floor_divide(index, 12)
    month = index - year * 12 + 1
    return days_from_civil(Civil(year, month, torch.minimum(civil.day, days_in_month(year, month))))


def weekday(days: torch.Tensor) -> torch.Tensor:
    """0 is Monday."""
    return torch.remainder(days.to(torch.int64) + 3, 7)


def day_of_year(days: torch.Tensor) -> torch.Tensor:
    """From 1."""
    return days.to(torch.int64) - truncate_days("year", days) + 1


def iso_week(days: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Year and number (from 1) of the ISO 8601 week: the week belongs to the year of its Thursday."""
    thursday = days.to(torch.int64) - weekday(days) + 3
    return civil_from_days(thursday).year, floor_divide(day_of_year(thursday) - 1, 7) + 1


def truncate_days(unit: str, days: torch.Tensor) -> torch.Tensor:
    """The first day of the unit (day, week from Monday, month, quarter, year, decade, century, millennium)."""
    days = days.to(torch.int64)
    if unit == "day":
        return days
    if unit == "week":
        return days - weekday(days)
    year, month, _ = civil_from_days(days)
    one = torch.ones_like(month)
    match unit:
        case "month":
            return days_from_civil(Civil(year, month, one))
        case "quarter":
            return days_from_civil(Civil(year, floor_divide(month - 1, 3) * 3 + 1, one))
        case "year":
            return days_from_civil(Civil(year, one, one))
        case _:
            years = {"decade": 10, "century": 100, "millennium": 1000}[unit]
            return days_from_civil(Civil(floor_divide(year, years) * years, one, one))
