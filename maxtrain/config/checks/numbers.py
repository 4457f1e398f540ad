"""The nearest values that a rule allows."""


def multiples_near(value: int, unit: int, offset: int = 0) -> list[int]:
    """The two values `offset + k × unit` (k >= 1) around a value, the nearer first."""
    below = max((value - offset) // unit, 1)
    return sorted({offset + below * unit, offset + (below + 1) * unit}, key=lambda near: (abs(near - value), near))


def divisors(number: int) -> list[int]:
    """Divisors of a positive number, ascending."""
    small = [divisor for divisor in range(1, int(number**0.5) + 1) if number % divisor == 0]
    return sorted({*small, *(number // divisor for divisor in small)})


def divisors_near(value: int, number: int) -> list[int]:
    """The two divisors of a number that are nearest to a value, the nearer first."""
    return sorted(divisors(number), key=lambda divisor: (abs(divisor - value), divisor))[:2]


def divisors_below(value: int, number: int) -> int:
    """The greatest divisor of a number that is at most a value."""
    return max(divisor for divisor in divisors(number) if divisor <= value)


def say_either(values: list[int]) -> str:
    """Write values as `4,096 or 8,192`."""
    return " or ".join(f"{value:,}" for value in values)
