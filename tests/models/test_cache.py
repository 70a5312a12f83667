"""Keys and values of the past: immutable values that share storage while only one of them grows."""

import pytest
import torch

from unrolled.models.cache import Cache

EMPTY = Cache(torch.empty(2, 3, 0, 5), torch.empty(2, 3, 0, 5))


def positions(first, count):
    """Keys that say their position, values its negative."""
    keys = torch.arange(first, first + count, dtype=torch.float32).view(1, 1, count, 1).expand(2, 3, count, 5)
    return keys, -keys


def numbers(cache):
    assert torch.equal(cache.keys, -cache.values)
    assert (cache.keys == cache.keys[:1, :1, :, :1]).all()
    return cache.keys[0, 0, :, 0].tolist()


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad, torch.inference_mode])
def test_caches_grow_and_old_ones_stay(mode):
    with mode():
        caches = [EMPTY]
        for step in range(40):
            caches.append(caches[-1].grown(*positions(step, 1)))
        assert [numbers(cache) for cache in caches] == [list(range(length)) for length in range(41)]


def test_two_that_grow_from_one_part_ways():
    with torch.no_grad():
        past = EMPTY.grown(*positions(0, 3)).grown(*positions(3, 1))
        first, second = past.grown(*positions(10, 1)), past.grown(*positions(20, 2))
        longer, other = first.grown(*positions(11, 1)), first.grown(*positions(12, 1))
        assert numbers(second) == [0, 1, 2, 3, 20, 21]
        assert numbers(longer) == [0, 1, 2, 3, 10, 11]
        assert numbers(other) == [0, 1, 2, 3, 10, 12]
        assert numbers(first) == [0, 1, 2, 3, 10]
        assert numbers(past) == [0, 1, 2, 3]


def test_steps_write_their_own_positions_alone():
    """The storage moves O(log T) times in T steps, and with a window it is bounded."""
    with torch.no_grad():
        cache, places = EMPTY.grown(*positions(0, 1)), set()
        for step in range(1, 1000):
            cache = cache.grown(*positions(step, 1))
            places.add(cache.keys.untyped_storage().data_ptr())
        assert numbers(cache) == list(range(1000))
        assert len(places) <= 10
        cache = EMPTY.grown(*positions(0, 1))
        for step in range(1, 1000):
            cache = cache.grown(*positions(step, 1)).last(7)
            assert cache.keys.untyped_storage().nbytes() <= 4 * 2 * 3 * 5 * 16
        assert numbers(cache) == list(range(993, 1000))


def test_with_gradients_there_is_a_graph():
    keys, values = (x.clone().requires_grad_() for x in positions(0, 2))
    cache = EMPTY.grown(keys, values).grown(*positions(2, 1))
    cache.keys[:, :, 0].sum().backward()
    assert (keys.grad[:, :, 0] == 1).all()
    assert (keys.grad[:, :, 1] == 0).all()


def test_what_inference_mode_made_may_grow_elsewhere():
    with torch.inference_mode():
        cache = EMPTY.grown(*positions(0, 2)).grown(*positions(2, 1))
    with torch.no_grad():
        assert numbers(cache.grown(*positions(3, 1))) == [0, 1, 2, 3]
