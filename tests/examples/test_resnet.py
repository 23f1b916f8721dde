from __future__ import annotations

import resnet
import torch
from sklearn.datasets import load_digits


def test_half_of_each_digits_images_are_kept_for_the_test_and_always_the_same():
    images, digits, test_images, test_digits = resnet.load_images()
    assert (len(images), len(test_images)) == (898, 899)
    assert (torch.bincount(digits) - torch.bincount(test_digits)).abs().max() <= 1
    all_images = torch.tensor(load_digits().data / 16.0).float()
    rows = torch.cat([images, test_images]).flatten(1)
    assert sorted(rows.tolist()) == sorted(all_images.tolist())
    again = resnet.load_images()
    assert torch.equal(again[2], test_images)
    assert torch.equal(again[3], test_digits)


def test_a_block_of_the_same_shape_adds_to_its_input():
    block = resnet.Block(4, 4, stride=1)
    assert isinstance(block.shortcut, torch.nn.Identity)
    for parameter in block.parameters():
        torch.nn.init.zeros_(parameter)
    x = torch.rand(2, 4, 8, 8)
    assert torch.equal(block(x), x)


def test_a_block_with_a_stride_halves_height_and_width():
    block = resnet.Block(4, 8, stride=2)
    assert block(torch.rand(2, 4, 8, 8)).shape == (2, 8, 4, 4)


def test_accuracy_is_in_points_of_a_hundred():
    digits = torch.arange(10).repeat(2)
    guesses = torch.where(digits == 3, 4, digits)

    class Model(torch.nn.Module):
        def forward(self, images):
            return torch.nn.functional.one_hot(images.long(), 10)

    accuracy, by_digit = resnet.test(Model(), guesses, digits)
    assert accuracy == 90.0
    assert by_digit == [100.0] * 3 + [0.0] + [100.0] * 6
