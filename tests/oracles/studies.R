# What R says of the studies of studies.py: Rscript studies.R FOLDER, which has their CSV files; writes r.json here.
# R 4.2 with survival 3.5, sandwich 3.0, metafor 3.8, glmnet 4.1 and jsonlite.
suppressMessages({library(survival); library(sandwich); library(metafor); library(glmnet); library(jsonlite)})
folder <- commandArgs(TRUE)[1]
special <- c("site", "y", "time", "event", "exposure", "fold")
fixed <- glm.control(epsilon = 1e-15, maxit = 100)
exact <- coxph.control(eps = 1e-14, toler.chol = 1e-15, iter.max = 100)

model <- function(left, columns, more) {
  as.formula(paste(left, "~", paste(c(sprintf("`%s`", columns), more), collapse = " + ")))
}

# A meta-analysis of the own fits of sites, if these have so many rows or events for each of k columns.
meta <- function(rows, fit, k, skip, counted) {
  sites <- Filter(function(site) counted(site)[1] >= counted(site)[2] * k, split(rows, rows$site))
  if (length(sites) < 3) return(list())
  fits <- lapply(sites, fit)
  lapply(seq_len(k), function(j) {
    b <- sapply(fits, function(f) coef(f)[[j + skip]])
    v <- sapply(fits, function(f) vcov(f)[j + skip, j + skip])
    common <- rma(b, v, method = "FE"); random <- rma(b, v, method = "DL")
    wide <- rma(b, v, method = "DL", test = "knha")
    list(Q = common$QE, "p of Q" = common$QEp, I2 = random$I2 / 100, fixed = common$b[[1]],
         "DerSimonian-Laird" = random$b[[1]], error = random$se, knapp = wide$se)
  })
}

linear <- function(rows, columns, family) {
  k <- length(columns)
  rows$logged <- log(if (is.null(rows$exposure)) 1 else rows$exposure)
  fit <- function(more, data, names = columns) {
    if (family == "gaussian") return(lm(model("y", names, more), data))
    formula <- model("y", names, c(more, "offset(logged)"))
    # The covariance is of the weights before the last step: another one from where the first ends.
    glm(formula, family, data, control = fixed, start = coef(glm(formula, family, data, control = fixed)))
  }
  counted <- switch(family, gaussian = function(d) c(nrow(d), 10), poisson = function(d) c(sum(d$y > 0), 5),
                    binomial = function(d) c(min(sum(d$y), sum(1 - d$y)), 5))
  within <- fit("factor(site)", rows); common <- fit(NULL, rows); without <- fit("factor(site)", rows, columns[-1])
  test <- anova(without, within, test = if (family == "gaussian") "F" else "LRT")
  clustered <- vcovCL(common, rows$site, type = if (family == "gaussian") "HC1" else "HC0")
  pick <- seq_len(k) + 1
  list(estimate = unname(coef(within)[pick]), covariance = unname(vcov(within)[pick, pick]),
       likelihood = c(logLik(within)), statistic = if (family == "gaussian") test$F[2] else test$Deviance[2],
       common = unname(coef(common)[pick]), clustered = unname(clustered[pick, pick]),
       meta = meta(rows, function(d) fit(NULL, d), k, 1, counted))
}

times <- function(rows, columns) {
  k <- length(columns)
  fit <- function(more, data, ties = "efron") {
    coxph(model("Surv(time, event)", columns, more), data, control = exact, ties = ties, model = TRUE, x = TRUE)
  }
  within <- fit("strata(site)", rows); breslow <- fit("strata(site)", rows, "breslow")
  robust <- coxph(update(formula(within), . ~ . + cluster(site)), rows, control = exact)
  curve <- survfit(Surv(time, event) ~ 1, rows)
  at <- quantile(rows$time, c(.25, .5, .75), names = FALSE, type = 1)
  known <- summary(curve, times = at)
  group <- rows[[columns[1]]] > median(rows[[columns[1]]])
  list(estimate = unname(coef(within)), covariance = unname(vcov(within)), likelihood = within$loglik[2],
       breslow = unname(coef(breslow)), clustered = unname(vcov(robust)),
       concordance = unname(within$concordance["concordance"]), zph = unname(cox.zph(within, "rank")$table[, "p"]),
       at = at, survival = known$surv, error = known$std.err, median = unname(quantile(curve, .5)$quantile),
       logrank = survdiff(Surv(rows$time, rows$event) ~ group)$chisq,
       stratified = survdiff(Surv(rows$time, rows$event) ~ group + strata(rows$site))$chisq,
       meta = meta(rows, function(d) fit(NULL, d), k, 0, function(d) c(sum(d$event), 5)))
}

# At 30 strengths from that at which all coefficients are 0, a millionth above it as flwr_fco's.
path <- function(rows, columns) {
  glmnet.control(fdev = 0, devmax = 1, pmin = 1e-15)
  x <- as.matrix(rows[columns]); classes <- all(rows$y %in% 0:1)
  largest <- max(abs(crossprod(x, rows$y - mean(rows$y)))) / nrow(x) * (1 + 1e-6)
  found <- cv.glmnet(x, rows$y, foldid = rows$fold + 1, lambda = largest * 1e-4 ^ (0:29 / 29), standardize = FALSE,
                     family = if (classes) "binomial" else "gaussian", thresh = 1e-26, maxit = 1e8, keep = TRUE)
  # Of classes cvm is that of chances within 1e-5 and 1 - 1e-5; fit.preval are the log odds.
  losses <- found$cvm / 2
  if (classes) losses <- colMeans(log1p(exp(-(2 * rows$y - 1) * found$fit.preval)))[seq_along(found$lambda)]
  chosen <- found$lambda[which.min(losses)]
  list(strengths = found$lambda, losses = unname(losses), chosen = chosen,
       coefficients = as.numeric(coef(found, s = chosen))[-1])
}

results <- list()
for (file in sort(list.files(folder, "\\.csv$"))) {
  kind <- sub("-.*", "", file)
  rows <- read.csv(file.path(folder, file), check.names = FALSE)
  columns <- setdiff(names(rows), special)
  results[[sub("\\.csv$", "", file)]] <- switch(kind,
    classes = linear(rows, columns, "binomial"), squares = linear(rows, columns, "gaussian"),
    counts = linear(rows, columns, "poisson"), times = times(rows, columns), path = path(rows, columns))
}
here <- dirname(sub("--file=", "", grep("--file=", commandArgs(FALSE), value = TRUE)))
write(toJSON(results, digits = I(13), auto_unbox = TRUE, na = "null"), file.path(here, "r.json"))
