"""Parameter-server training with TensorFlow on synthetic images: training.py ROLE PORT...

ROLE is ps, chief or the number of a worker; PORTs are the parameter server's, the chief's, the workers'.

A parameter server and its workers serve until they are killed. The chief takes orders, one line of JSON each: so many
steps of a model, one after the other, from its first variables on, of which it tells the losses; or steps for so many
seconds, of which it tells how many images a second were trained with. Everything is seeded by what stands here.
"""

import json
import os
import sys
import time

role, ps, chief, *workers = sys.argv[1:]
cluster = {"ps": [f"127.0.0.1:{ps}"], "worker": [f"127.0.0.1:{port}" for port in workers]}
os.environ.update(TF_CPP_MIN_LOG_LEVEL="3", CUDA_VISIBLE_DEVICES="")
if role == "chief":
    task = {"type": "chief", "index": 0}
    os.environ["TF_CONFIG"] = json.dumps({"cluster": {**cluster, "chief": [f"127.0.0.1:{chief}"]}, "task": task})

import numpy
import tensorflow as tf

# Sums of floating-point numbers come out the same only in one order.
tf.config.threading.set_intra_op_parallelism_threads(1)

if role != "chief":
    kind, index = ("ps", 0) if role == "ps" else ("worker", int(role))
    tf.distribute.Server(tf.train.ClusterSpec(cluster), job_name=kind, task_index=index, protocol="grpc").join()

IMAGES, PIXELS, CLASSES = 8, 32, 10
random = numpy.random.default_rng(1)


def conv(x, weights, stride=1):
    return tf.nn.relu(tf.nn.conv2d(x, weights, stride, "SAME"))


def alexnet(x, w):
    for at in range(2):
        x = tf.nn.max_pool2d(conv(x, w[at], 2 - at), 2, 2, "SAME")
    x = tf.reshape(x, (IMAGES, -1))
    for at in range(2, 4):
        x = tf.nn.relu(x @ w[at])
    return x @ w[4]


def inception(x, w):
    x = conv(x, w[0], 2)
    for at in (1, 7):
        a, b, c, d, e, f = w[at : at + 6]
        pooled = tf.nn.avg_pool2d(x, 3, 1, "SAME")
        x = tf.concat([conv(x, a), conv(conv(x, b), c), conv(conv(x, d), e), conv(pooled, f)], axis=3)
    return tf.reduce_mean(x, (1, 2)) @ w[13]


def resnet(x, w):
    x = conv(x, w[0], 2)
    for at in range(1, 9, 2):
        x = tf.nn.relu(x + tf.nn.conv2d(conv(x, w[at]), w[at + 1], 1, "SAME"))
    return tf.reduce_mean(x, (1, 2)) @ w[9]


def block(channels):
    return [(1, 1, channels, 32), (1, 1, channels, 32), (3, 3, 32, 32), (1, 1, channels, 32), (5, 5, 32, 32),
            (1, 1, channels, 32)]


SHAPES = {
    alexnet: [(5, 5, 3, 32), (3, 3, 32, 64), (1024, 1024), (1024, 1024), (1024, CLASSES)],
    inception: [(3, 3, 3, 32), *block(32), *block(128), (128, CLASSES)],
    resnet: [(3, 3, 3, 64), *[(3, 3, 64, 64)] * 8, (64, CLASSES)],
}


class Model:
    """The variables of a model at the parameter server, and a step of a worker."""

    def __init__(self, layers, shapes):
        self.first = [(random.standard_normal(it) / numpy.prod(it[:-1]) ** 0.5).astype("f4") for it in shapes]
        images = random.standard_normal((IMAGES, PIXELS, PIXELS, 3)).astype("f4")
        labels = random.integers(0, CLASSES, IMAGES)
        with strategy.scope():
            self.variables = [tf.Variable(value) for value in self.first]

        @tf.function
        def step():
            with tf.GradientTape() as tape:
                guessed = layers(tf.constant(images), self.variables)
                losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=guessed)
                loss = tf.reduce_mean(losses)
            for variable, gradient in zip(self.variables, tape.gradient(loss, self.variables)):
                variable.assign_sub(0.01 * gradient)
            return loss

        self.step = step

    def losses(self, steps):
        for variable, value in zip(self.variables, self.first):
            variable.assign(value)
        return [float(coordinator.schedule(self.step).fetch()) for _ in range(steps)]

    def images_per_second(self, seconds):
        begun, steps, elapsed = time.monotonic(), 0, 0
        while elapsed < seconds:
            for _ in range(4 * len(workers)):
                coordinator.schedule(self.step)
            coordinator.join()
            steps += 4 * len(workers)
            elapsed = time.monotonic() - begun
        return steps * IMAGES / elapsed


def answer(order):
    model = models[order["model"]]
    if "steps" in order:
        return {"losses": model.losses(order["steps"])}
    return {"images_per_second": model.images_per_second(order["seconds"])}


strategy = tf.distribute.ParameterServerStrategy(tf.distribute.cluster_resolver.TFConfigClusterResolver())
coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
models = {layers.__name__: Model(layers, shapes) for layers, shapes in SHAPES.items()}
print(json.dumps({"tensorflow": tf.__version__}), flush=True)
for line in sys.stdin:
    print(json.dumps(answer(json.loads(line))), flush=True)
# Its threads would wait for the workers.
os._exit(0)
