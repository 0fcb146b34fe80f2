# A sweep over seeds with make: what is there and newer than what it is made of is not made again, -j runs side by side.
#
#   make -f examples/sweep.mk -j 2 ROWS=questions.jsonl MODEL=model SEEDS='1 2 3'
#
# Everything is written in this folder; the end is mcog.jsonl. TRAIN and READ are further options of the tools.
ROWS ?= questions.jsonl
MODEL ?= model
SEEDS ?= 1 2 3
TRAIN ?= --epochs 16 --lr 3e-4 --batch-size 16
READ ?=
export OMP_NUM_THREADS ?= 1

# A command that fails leaves no half a file behind that would look made.
.DELETE_ON_ERROR:
# What is made on the way is kept.
.SECONDARY:

mcog.jsonl: $(SEEDS:%=swap-%.jsonl)
	mltools mcog $^ > $@

swap-%.jsonl: noisy-%/mltools.json clean-%/mltools.json noisy-%.jsonl
	mltools swap noisy-$* clean-$* noisy-$*.jsonl --tag seed=$* $(READ) > $@

noisy-%/mltools.json: noisy-%.jsonl
	mltools finetune $(MODEL) $< -o $(@D) --force --seed $* $(TRAIN) $(READ) > noisy-$*-epochs.jsonl

clean-%/mltools.json: noisy-%.jsonl
	mltools finetune $(MODEL) $< -o $(@D) --force --seed $* --target original_label $(TRAIN) $(READ) > clean-$*-epochs.jsonl

noisy-%.jsonl: $(ROWS)
	mltools perturb --rate 0.15 --seed $* $< > $@
