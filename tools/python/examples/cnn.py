"""A small convolutional net for images of 28 x 28 in 10 classes."""

from torch import nn


class Cnn(nn.Sequential):
    """x: [n, 1, 28, 28].  Gives [n, 10]."""

    def __init__(self):
        super().__init__(
            nn.Conv2d(1, 16, 5, padding=2), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 5, padding=2), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
            nn.Flatten(), nn.Linear(32 * 7 * 7, 128), nn.ReLU(), nn.Dropout(0.25), nn.Linear(128, 10),
        )
